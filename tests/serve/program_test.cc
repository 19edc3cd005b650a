// dsmoe serve as a user runs it: refuses exposure, serves, and ends cleanly on SIGTERM.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <thread>

#include "base/scratch_folder.h"
#include "base/sha256.h"
#include "cli/program.h"
#include "serve/http_client.h"
#include "serve/running_server.h"

namespace dsmoe::testing {
namespace {

const std::string kConfig = std::string(DSMOE_SOURCE_DIR) + "/tests/clients/config.json";

std::string make_model(const std::string& folder) {
  const Ran made =
      run_dsmoe({"demo", "--random", "--config", kConfig, "-o", folder, "--seed", "3", "-q"});
  EXPECT_EQ(made.code, 0) << made.err;
  return folder;
}

std::vector<std::string> on_any_port(const std::string& model) {
  return {model, "--port", "0", "--threads", "1", "--model-name", "m"};
}

TEST(ServeProgram, SigtermLetsRunningAndWaitingRequestsFinish) {
  const ScratchFolder scratch;
  const std::string log = (scratch / "log").string();
  std::vector<std::string> arguments = on_any_port(make_model((scratch / "model").string()));
  arguments.insert(arguments.end(), {"--drain-seconds", "600"});
  RunningServer server({.program = DSMOE_PROGRAM, .arguments = arguments, .log_file = log});
  ASSERT_TRUE(server.wait_until_serving());
  // No tokenizer: ids in, numbers out.
  const Json body{
      {"prompt", {5, 6, 7}}, {"max_tokens", 100}, {"ignore_eos", true}, {"stream", true}};
  std::vector<std::unique_ptr<Client>> clients;  // four times the batch
  std::vector<std::string> texts;
  for (int c = 0; c < 64; ++c) {
    clients.push_back(std::make_unique<Client>(server.port()));
    clients.back()->send(format_request("POST", "/v1/completions", body.dump()));
    texts.push_back(clients.back()->receive_some());
    ASSERT_NE(texts.back(), "");
  }
  Client(server.port()).request("POST", "/v1/completions", "{}", {"X-Request-Id: refused-1"});
  server.signal(SIGTERM);
  for (std::size_t c = 0; c < clients.size(); ++c) {
    for (std::string piece; !(piece = clients[c]->receive_some()).empty();) texts[c] += piece;
    EXPECT_NE(texts[c].find("\"finish_reason\":\"length\""), std::string::npos) << c;
    EXPECT_NE(texts[c].find("data: [DONE]"), std::string::npos) << c;
  }
  EXPECT_EQ(server.wait(), 0);
  const std::string logged = read_file(log);
  EXPECT_NE(logged.find("id=refused-1 route=/v1/completions status=400 param=prompt reason="),
            std::string::npos)
      << logged;
  EXPECT_NE(logged.find("status=200 prompt_tokens=3 answer_tokens=100 seconds="), std::string::npos)
      << logged;
}

// The terminal is gone.
TEST(ServeProgram, SighupDrainsUnlessNohupSaysOtherwise) {
  const ScratchFolder scratch;
  const std::vector<std::string> arguments = on_any_port(make_model((scratch / "model").string()));
  RunningServer server({.program = DSMOE_PROGRAM, .arguments = arguments});
  ASSERT_TRUE(server.wait_until_serving());
  const Json body{
      {"prompt", {5, 6, 7}}, {"max_tokens", 100}, {"ignore_eos", true}, {"stream", true}};
  Client client(server.port());
  client.send(format_request("POST", "/v1/completions", body.dump()));
  std::string text = client.receive_some();
  ASSERT_NE(text, "");
  server.signal(SIGHUP);
  for (std::string piece; !(piece = client.receive_some()).empty();) text += piece;
  EXPECT_NE(text.find("data: [DONE]"), std::string::npos) << text;
  EXPECT_EQ(server.wait(), 0);

  const auto before = ::signal(SIGHUP, SIG_IGN);
  RunningServer nohup({.program = DSMOE_PROGRAM, .arguments = arguments});
  ::signal(SIGHUP, before);
  ASSERT_TRUE(nohup.wait_until_serving());
  nohup.signal(SIGHUP);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Client(nohup.port()).get("/health").status, 200);
  nohup.signal(SIGTERM);
  EXPECT_EQ(nohup.wait(), 0);
}

// With a few it would start, and take nobody.
TEST(ServeProgram, TooFewFilesAreSaidAtOnce) {
  const ScratchFolder scratch;
  const std::string model = make_model((scratch / "model").string());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  for (const rlim_t most : {16, 63}) {
    const rlimit low{.rlim_cur = most, .rlim_max = before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
    const Ran ran = run_dsmoe({"serve", model, "--port", "0"});
    ::setrlimit(RLIMIT_NOFILE, &before);
    EXPECT_EQ(ran.code, 1);
    EXPECT_NE(ran.err.find("ulimit -n"), std::string::npos) << ran.err;
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
int64_t address_space_kilobytes(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmSize:")) return std::atoll(line.c_str() + 7);
  }
  return 0;
}

// Bodies fill all the memory it may have, so that it can take nobody. Then they are gone.
TEST(ServeProgram, HearsAgainAfterItsMemoryWasFull) {
  const ScratchFolder scratch;
  std::vector<std::string> arguments = on_any_port(make_model((scratch / "model").string()));
  arguments.insert(arguments.end(), {"--max-bodies", "100000"});
  RunningServer server({.program = DSMOE_PROGRAM, .arguments = arguments});
  ASSERT_TRUE(server.wait_until_serving());
  const rlim_t limit = static_cast<rlim_t>(address_space_kilobytes(server.pid()) + (48 << 10))
                       << 10;
  const rlimit address_space{.rlim_cur = limit, .rlim_max = limit};
  ASSERT_EQ(::prlimit(server.pid(), RLIMIT_AS, &address_space, nullptr), 0);
  {
    std::vector<std::unique_ptr<Client>> clients;
    const std::pair<int, int> bodies[] = {{8300000, 8}, {1000000, 40}, {200000, 60},
                                          {60000, 100}, {20000, 150},  {4000, 300}};
    for (const auto& [size, count] : bodies) {
      for (int i = 0; i < count; ++i) {
        clients.push_back(std::make_unique<Client>(server.port()));
        clients.back()->send(fmt::format("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                                         "Content-Length: {}\r\n\r\n",
                                         size) +
                             std::string(static_cast<std::size_t>(size - 1), ' '));
      }
    }
    for (int i = 0; i < 200; ++i) clients.push_back(std::make_unique<Client>(server.port()));
  }
  int status = 0;
  for (int i = 0; i < 6000 && status != 200; ++i) {
    status = Client(server.port()).get("/health").status;
    if (status != 200) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(status, 200);
  const Json body{{"prompt", {5, 6, 7}}, {"max_tokens", 2}};
  EXPECT_EQ(Client(server.port()).post("/v1/completions", body).status, 200);
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(), 0);
}
#endif

// A server that was given no model, in a folder of its own.
class Unnamed {
 public:
  explicit Unnamed(const ScratchFolder& folder)
      : log_((folder / "log").string()),
        server_({.program = DSMOE_PROGRAM,
                 .arguments = {"--port", "0", "--threads", "1"},
                 .folder = folder.path().string(),
                 .log_file = log_}) {}

  // What it has said once that contains `what`, or after five minutes.
  std::string wait_for(const std::string& what) const {
    std::string said;
    for (int i = 0; i < 30000 && said.find(what) == std::string::npos; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      said = read_file(log_);
    }
    return said;
  }
  // Only the log names the port before there is a model.
  uint16_t port() const {
    const std::string before = "http://127.0.0.1:", said = wait_for(before);
    const std::size_t at = said.rfind(before);
    return at == std::string::npos
               ? uint16_t{0}
               : static_cast<uint16_t>(std::atoi(said.c_str() + at + before.size()));
  }
  int end() {
    server_.signal(SIGTERM);
    return server_.wait();
  }

 private:
  std::string log_;
  RunningServer server_;
};

// What /health says of the training once its first step is done; null after five minutes.
Json wait_for_training(uint16_t port) {
  for (int i = 0; i < 30000; ++i) {
    const Json health = Client(port).get("/health").json();
    if (health.contains("training")) return health["training"];
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return {};
}

// No model and no demo: the demo is trained first, and the server says so meanwhile. Stopped in the
// middle, the next one goes on.
TEST(ServeProgram, TrainsTheDemoWhereThereIsNoneAndGoesOnWithAnUnfinishedOne) {
  const ScratchFolder scratch;
  {
    Unnamed server(scratch);
    const std::string said = server.wait_for("1500 steps");
    EXPECT_NE(said.find("until it is done"), std::string::npos) << said;
    ASSERT_NE(server.port(), 0);
    const Answer health = Client(server.port()).get("/health");
    EXPECT_EQ(health.status, 503);
    EXPECT_EQ(health.json()["status"], "loading");
    const Json training = wait_for_training(server.port());
    EXPECT_EQ(training["total"], 1500);
    EXPECT_GE(training["step"], 1);
    EXPECT_GT(training["loss"], 0);
    EXPECT_GT(training["seconds_left"], 0);
    ASSERT_GE(training["curve"].size(), 1u);
    EXPECT_EQ(training["curve"].back()[0], training["step"]);
    EXPECT_EQ(training["curve"].back()[1], training["loss"]);
    const Answer refused = Client(server.port()).post("/v1/completions", {{"prompt", "x"}});
    EXPECT_EQ(refused.status, 503);
    EXPECT_EQ(refused.json()["error"]["code"], "loading");
    EXPECT_EQ(server.end(), 128 + SIGTERM);
    EXPECT_NE(server.wait_for("stopped after step").find("; the same command goes on"),
              std::string::npos);
  }
  Unnamed again(scratch);
  const std::string said = again.wait_for("going on");
  EXPECT_NE(said.find(" of 1500: going on with it"), std::string::npos) << said;
  EXPECT_NE(again.wait_for("resumed from").find("resumed from demo-out/step-"), std::string::npos);
  EXPECT_EQ(again.end(), 128 + SIGTERM);
}

TEST(ServeProgram, APortInUseIsSaidAtOnce) {
  const ScratchFolder scratch;
  const std::string model = make_model((scratch / "model").string());
  RunningServer server({.program = DSMOE_PROGRAM, .arguments = on_any_port(model)});
  ASSERT_TRUE(server.wait_until_serving());
  const std::string port = std::to_string(server.port());
  const Ran second = run_dsmoe({"serve", model, "--port", port});
  EXPECT_EQ(second.code, 1);
  EXPECT_NE(second.err.find("port " + port + ": Address already in use"), std::string::npos)
      << second.err;
  EXPECT_NE(second.err.find("--port"), std::string::npos) << second.err;
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(), 0);
}

// Without a name: the newest model under demo-out/ of the folder it runs in.
TEST(ServeProgram, ServesTheDemosModelWithoutAName) {
  const ScratchFolder scratch;
  std::string text;
  for (int i = 0; i < 100; ++i) text += "The cat sat on the mat. The dog sat on the log.\n\n";
  write_file((scratch / "corpus.txt").string(), text);
  const Ran trained = run_dsmoe({"train", "--config", kConfig, "--data",
                                 (scratch / "corpus.txt").string(), "--steps", "1", "--batch", "1",
                                 "--seq", "64", "--out", (scratch / "demo-out").string(), "-q"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  RunningServer server({.program = DSMOE_PROGRAM,
                        .arguments = {"--port", "0", "--threads", "1"},
                        .folder = scratch.path().string()});
  ASSERT_TRUE(server.wait_until_serving());
  const Json models = Client(server.port()).get("/v1/models").json();
  EXPECT_EQ(models["data"][0]["id"], "demo-out");
  EXPECT_EQ(models["data"][0]["has_chat_template"], true);
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(), 0);
}

// A plan that someone else wrote, and sealed.
TEST(ServeProgram, APlanThatSaysNothingIsNoPlan) {
  const ScratchFolder scratch;
  write_file((scratch / "corpus.txt").string(), std::string(2000, 'a'));
  const Ran trained = run_dsmoe({"train",
                                 "--config",
                                 kConfig,
                                 "--data",
                                 (scratch / "corpus.txt").string(),
                                 "--steps",
                                 "1000",
                                 "--batch",
                                 "1",
                                 "--seq",
                                 "4",
                                 "--save-every",
                                 "0",
                                 "--valid-every",
                                 "0",
                                 "--threads",
                                 "1",
                                 "--out",
                                 (scratch / "demo-out").string(),
                                 "-q"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const std::string folder = (scratch / "demo-out" / "step-00001000").string();
  const auto replace = [](std::string& text, const std::string& from, const std::string& to) {
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
  };
  std::string state = read_file(folder + "/train_state.safetensors");
  std::string manifest = read_file(folder + "/MANIFEST.json");
  const std::string before = sha256(state);
  replace(state, R"(\"steps\":1000)", R"(\"steps\":null)");
  replace(manifest, before, sha256(state));
  write_file(folder + "/train_state.safetensors", state);
  write_file(folder + "/MANIFEST.json", manifest);
  RunningServer server({.program = DSMOE_PROGRAM,
                        .arguments = {"--port", "0", "--threads", "1"},
                        .folder = scratch.path().string()});
  ASSERT_TRUE(server.wait_until_serving());
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(), 0);
}

TEST(ServeProgram, KeysOfAFileAreNeeded) {
  const ScratchFolder scratch;
  const std::string keys = (scratch / "keys").string(), log = (scratch / "log").string();
  write_file(keys, "\xef\xbb\xbf# ours\n\n  first key \r\n\t\n#second\nthird");
  std::vector<std::string> arguments = on_any_port(make_model((scratch / "model").string()));
  arguments.insert(arguments.end(), {"--api-key-file", keys, "--api-key", "another"});
  RunningServer server({.program = DSMOE_PROGRAM, .arguments = arguments, .log_file = log});
  ASSERT_TRUE(server.wait_until_serving());
  const auto status_with = [&](const std::string& key) {
    return Client(server.port())
        .request("GET", "/v1/models", "", {"Authorization: Bearer " + key})
        .status;
  };
  for (const char* key : {"first key", "third", "another"}) EXPECT_EQ(status_with(key), 200) << key;
  for (const char* key : {"", "second", "#second", "# ours", "\xef\xbb\xbf# ours", "first"}) {
    EXPECT_EQ(status_with(key), 401) << key;
  }
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(), 0);
  EXPECT_NE(read_file(log).find("chmod 600"), std::string::npos);
}

TEST(ServeProgram, ABlankKeyIsRefusedWhereverItComesFrom) {
  const ScratchFolder scratch;
  const std::string file = (scratch / "keys").string();
  for (const char* blank : {"", " ", "\t"}) {
    const Ran flag = run_dsmoe({"serve", "--api-key", blank, "nowhere"});
    EXPECT_EQ(flag.code, 2);
    EXPECT_NE(flag.err.find("blank"), std::string::npos) << flag.err;
    ::setenv("DSMOE_API_KEY", blank, 1);
    const Ran variable = run_dsmoe({"serve", "nowhere"});
    ::unsetenv("DSMOE_API_KEY");
    EXPECT_EQ(variable.code, 2);
    EXPECT_NE(variable.err.find("DSMOE_API_KEY is blank"), std::string::npos) << variable.err;
    write_file(file, std::string("# none\n") + blank + "\n");
    const Ran of_file = run_dsmoe({"serve", "--api-key-file", file, "nowhere"});
    EXPECT_EQ(of_file.code, 1);
    EXPECT_NE(of_file.err.find("expected an API key per line"), std::string::npos) << of_file.err;
  }
  EXPECT_EQ(run_dsmoe({"serve", "--api-key-file", "", "nowhere"}).code, 1);
  EXPECT_EQ(run_dsmoe({"serve", "--api-key", "a\nb", "nowhere"}).code, 2);
  EXPECT_EQ(run_dsmoe({"serve", "--api-key", "a ", "nowhere"}).code, 2);
  write_file(file, std::string("a\0b\n", 4));
  EXPECT_EQ(run_dsmoe({"serve", "--api-key-file", file, "nowhere"}).code, 2);
}

TEST(ServeProgram, CheckLoadsEverythingAndOpensNoPort) {
  const ScratchFolder scratch;
  const std::string model = make_model((scratch / "model").string());
  // A port that is taken does not matter: a server may run.
  RunningServer running({.program = DSMOE_PROGRAM, .arguments = on_any_port(model)});
  ASSERT_TRUE(running.wait_until_serving());
  const std::string port = std::to_string(running.port());
  const Ran good = run_dsmoe({"serve", model, "--check", "--port", port, "--threads", "1"});
  EXPECT_EQ(good.code, 0) << good.err;
  EXPECT_NE(good.out.find("model can be served: context "), std::string::npos) << good.out;
  EXPECT_NE(good.out.find("; no chat template; 0 keys"), std::string::npos) << good.out;
  write_file(model + "/chat_template.jinja", "{{ raise_exception('no') }}");
  const Ran refuses = run_dsmoe({"serve", model, "--check", "--threads", "1"});
  EXPECT_EQ(refuses.code, 1);
  EXPECT_NE(refuses.err.find("chat template"), std::string::npos) << refuses.err;
  write_file(model + "/chat_template.jinja", "{% if %}");
  EXPECT_NE(run_dsmoe({"serve", model, "--check", "--threads", "1"}).code, 0);
  EXPECT_EQ(run_dsmoe({"serve", "nowhere", "--check"}).code, 1);
}

// The request, then the server's flags, then the folder, then the model's own distribution.
TEST(ServeProgram, SamplingDefaultsComeFromFlagsAndTheFolder) {
  const ScratchFolder scratch;
  const std::string model = make_model((scratch / "model").string());
  write_file(model + "/generation_config.json", R"({"temperature": 0, "top_k": 50})");
  const auto differ = [&](const std::vector<std::string>& flags, const Json& fields) {
    std::vector<std::string> arguments = on_any_port(model);
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    RunningServer server({.program = DSMOE_PROGRAM, .arguments = arguments});
    EXPECT_TRUE(server.wait_until_serving());
    std::string first;
    bool found = false;
    for (int seed = 0; seed < 4; ++seed) {
      Json body{{"prompt", {5, 6, 7}}, {"max_tokens", 20}, {"seed", seed}, {"ignore_eos", true}};
      body.update(fields);
      const std::string text =
          Client(server.port()).post("/v1/completions", body).json()["choices"][0]["text"];
      if (seed == 0) first = text;
      found = found || text != first;
    }
    return found;
  };
  EXPECT_FALSE(differ({}, Json::object()));  // the folder: always the likeliest
  EXPECT_TRUE(differ({"--temperature", "1"}, Json::object()));
  EXPECT_FALSE(differ({"--temperature", "1"}, {{"temperature", 0}}));
  EXPECT_FALSE(differ({"--temperature", "1", "--top-k", "1"}, Json::object()));
  write_file(model + "/generation_config.json", R"({"temperature": "hot"})");
  const Ran wrong = run_dsmoe({"serve", model, "--check", "--threads", "1"});
  EXPECT_NE(wrong.code, 0);
  EXPECT_NE(wrong.err.find("generation_config.json: temperature: expected a number"),
            std::string::npos)
      << wrong.err;
}

TEST(ServeProgram, RefusesWhatItCannotServe) {
  // A flag that may be repeated takes one value: the next one is the model.
  const Ran model_last = run_dsmoe({"serve", "--api-key", "secret", "nowhere"});
  EXPECT_EQ(model_last.code, 1);
  EXPECT_NE(
      model_last.err.find("nowhere: no such folder; expected a model folder or a training run"),
      std::string::npos)
      << model_last.err;
  const Ran exposed = run_dsmoe({"serve", "nowhere", "--host", "0.0.0.0"});
  EXPECT_EQ(exposed.code, 2);
  EXPECT_NE(exposed.err.find("--api-key"), std::string::npos) << exposed.err;
  EXPECT_EQ(run_dsmoe({"serve", "nowhere", "--host", "example.org"}).code, 2);
  const Ran missing = run_dsmoe({"serve", "nowhere"});
  EXPECT_EQ(missing.code, 1);
  EXPECT_NE(missing.err.find("nowhere: no such folder; expected a model folder or a training run"),
            std::string::npos)
      << missing.err;
  const Ran elsewhere =
      run_dsmoe({"serve", std::string(DSMOE_SOURCE_DIR), "--host", "192.0.2.1", "--no-auth"});
  EXPECT_EQ(elsewhere.code, 1);
  EXPECT_EQ(run_dsmoe({"serve", "--port", "70000"}).code, 2);
  EXPECT_EQ(run_dsmoe({"serve", "--api-key", "", "nowhere"}).code, 2);
  const ScratchFolder scratch;
  std::vector<std::string> small = on_any_port(make_model((scratch / "model").string()));
  small.insert(small.begin(), "serve");
  small.insert(small.end(), {"--kv-memory", "1e-9"});  // less than a page
  const Ran ran = run_dsmoe(small);
  EXPECT_EQ(ran.code, 2);
  EXPECT_NE(ran.err.find("does not hold one context"), std::string::npos) << ran.err;
}

}  // namespace
}  // namespace dsmoe::testing
