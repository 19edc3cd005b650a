// Connections that misbehave, fill the table, hold bodies, half close: the others are served.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <thread>

#include "base/log.h"
#include "serve/small_server.h"

namespace dsmoe::testing {
namespace {

const Json kShort{{"prompt", "The cat"}, {"max_tokens", 4}, {"ignore_eos", true}};

Json long_answer(bool is_stream) {
  return {{"prompt", "The cat"},
          {"max_tokens", 30000},
          {"ignore_eos", true},
          {"temperature", 0},
          {"stream", is_stream}};
}

std::vector<std::unique_ptr<Client>> connect(uint16_t port, int count) {
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < count; ++i) clients.push_back(std::make_unique<Client>(port));
  return clients;
}

// The answer to the first request meets a closed socket, and so the 100 to the second one fails.
TEST(Connections, AWriteThatFailsBeforeTheBodyLeavesNothingBehind) {
  SmallServer server({.http = {.max_connections = 32}});
  for (int i = 0; i < 100; ++i) {
    Client client(server.port());
    client.send(
        "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        "GET /health HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: "
        "2\r\n\r\n{}");
  }
  EXPECT_EQ(server.get("/health").status, 200);
  EXPECT_EQ(wait_for_metric(server, "dsmoe_connections", 1), 1);
}

TEST(Connections, WhenAllPlacesAreTakenTheLongestIdleOneGoes) {
  SmallServer server({.http = {.max_connections = 8}});
  const auto idle = connect(server.port(), 8);
  Client half(server.port());
  half.send("GET /hea");
  for (int i = 0; i < 4; ++i) EXPECT_EQ(server.complete(kShort).status, 200);
  EXPECT_TRUE(idle.front()->is_closed());
  EXPECT_EQ(idle.back()->get("/health").status, 200);
  half.send("lth HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(half.receive().status, 200);
}

TEST(Connections, WhereNobodyCanGoThereIsAPlaceForHealth) {
  SmallServer server({.http = {.max_connections = 4}}, {.positions = 32768});
  const auto busy = connect(server.port(), 4);
  for (const auto& client : busy) {
    client->send(format_request("POST", "/v1/completions", long_answer(true).dump()));
    ASSERT_NE(client->receive_some(), "");
  }
  const auto idle = connect(server.port(), 100);
  EXPECT_EQ(server.get("/health").status, 200);
  const Answer refused = server.complete(kShort);
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  busy.front()->close();  // there is a place again as soon as it is noticed
  int status = 503;
  for (int i = 0; i < 6000 && status != 200; ++i) status = server.complete(kShort).status;
  EXPECT_EQ(status, 200);
}

TEST(Connections, AnAddressOverItsShareGivesUpItsOwn) {
  SmallServer server({.http = {.max_connections = 8, .max_connections_per_address = 4}});
  Client other(server.port(), 0, "127.0.0.2");
  const auto idle = connect(server.port(), 12);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_TRUE(idle[i]->is_closed()) << i;
  EXPECT_EQ(other.get("/v1/models").status, 200);  // waits longest of all
  EXPECT_EQ(idle.back()->get("/v1/models").status, 200);
}

std::string most_of_a_body(std::size_t size) {
  return fmt::format(
             "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
             size) +
         std::string(size - 1, ' ');
}

TEST(Connections, BodiesHeldOpenHaveOneBudgetAndSmallOnesPass) {
  SmallServer server({.http = {.max_bodies_bytes = std::size_t{1} << 20}});
  const std::string large =
      Json{{"prompt", "a"}, {"max_tokens", 1}, {"x", std::string(400000, 'y')}}.dump();
  {
    std::vector<std::unique_ptr<Client>> holding;
    Answer refused;
    for (int i = 0; i < 100 && refused.status != 503; ++i) {  // two of them fill it, once they came
      holding.push_back(std::make_unique<Client>(server.port()));
      holding.back()->send(most_of_a_body(500000));
      refused = Client(server.port()).request("POST", "/v1/completions", large);
    }
    EXPECT_EQ(refused.status, 503);
    EXPECT_EQ(refused.headers["retry-after"], "1");
    EXPECT_EQ(server.complete(kShort).status, 200);
    // Who announces much and sends nothing holds nothing.
    const auto announcing = connect(server.port(), 50);
    for (const auto& client : announcing) client->send(most_of_a_body(500000).substr(0, 200));
    EXPECT_EQ(server.complete(kShort).status, 200);
  }
  int status = 503;
  for (int i = 0; i < 6000 && status == 503; ++i) {
    status = Client(server.port()).request("POST", "/v1/completions", large).status;
  }
  EXPECT_EQ(status, 200);
  for (int i = 0; i < 20; ++i) {  // each is given back
    EXPECT_EQ(Client(server.port()).request("POST", "/v1/completions", large).status, 200);
  }
}

// A small body may bring a prompt that is many times as large, for every one of its answers.
TEST(Connections, PromptsThatWaitAreInTheBudgetUntilTheyAreAnswered) {
  SmallServer server(
      {.engine = {.max_batch = 1}, .http = {.max_bodies_bytes = std::size_t{200} << 10}},
      {.positions = 8192});
  Json body{{"prompt", std::vector<int>(7000, 5)}, {"max_tokens", 1000}, {"ignore_eos", true}};
  const std::string prompt = format_request("POST", "/v1/completions", body.dump());
  {
    std::vector<std::unique_ptr<Client>> waiting;
    for (int i = 0; i < 3; ++i) {  // each of them 2 x 4 bytes x 7,000 tokens
      waiting.push_back(std::make_unique<Client>(server.port()));
      waiting.back()->send(prompt);
    }
    ASSERT_EQ(wait_for_metric(server, "dsmoe_requests_running", 3), 3);
    const Answer refused = server.complete(body);
    EXPECT_EQ(refused.status, 503);
    EXPECT_EQ(refused.headers.at("retry-after"), "1");
    EXPECT_EQ(refused.json()["error"]["code"], "overloaded");
    Client small(server.port());
    small.send(format_request("POST", "/v1/completions", kShort.dump()));
    EXPECT_EQ(wait_for_metric(server, "dsmoe_requests_running", 4), 4);
  }
  body["max_tokens"] = 1;
  Answer answer;
  for (int i = 0; i < 6000 && answer.status != 200; ++i) answer = server.complete(body);
  EXPECT_EQ(answer.status, 200);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(server.complete(body).status, 200);  // each is given back
}

TEST(Connections, WithKeysNoLargeBodyIsReadWithoutOne) {
  SmallServer server({.api = {.keys = {"key"}}});
  const std::string large = format_request("GET", "/health", std::string(100000, ' '));
  Client client(server.port());
  client.send(large.substr(0, large.find("\r\n\r\n") + 4));
  EXPECT_EQ(client.receive().status, 413);  // at once
  EXPECT_EQ(Client(server.port()).request("GET", "/health", "{}").status, 200);
  Client chunked(server.port());
  chunked.send(
      "GET /health HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n20000\r\n");
  EXPECT_EQ(chunked.receive().status, 413);
}

int status_of(SmallServer& server, const std::string& raw) {
  Client client(server.port());
  client.send(raw);
  return client.receive().status;
}

TEST(Connections, FramingThatAProxyMayReadInAnotherWayIsRefused) {
  SmallServer server;
  const auto get = [&](const std::string& fields) {
    return status_of(server, "GET /health HTTP/1.1\r\n" + fields + "\r\n");
  };
  EXPECT_EQ(get("Host: localhost\r\n"), 200);
  EXPECT_EQ(get("host: localhost\r\nTE: gzip, chunked\r\n"), 200);  // what the client would take
  EXPECT_EQ(get(""), 400);
  EXPECT_EQ(get("Host: localhost\r\nHost: localhost\r\n"), 400);
  EXPECT_EQ(get("Host: localhost\r\nX: a\r\n b\r\n"), 400);
  EXPECT_EQ(get("Host: localhost\r\nX: a\r\n\tb\r\n"), 400);
  EXPECT_EQ(get("Host: localhost\r\nX: a\r\n \r\n"), 400);
  EXPECT_EQ(status_of(server, "GET /health HTTP/1.0\r\n\r\n"), 200);
  EXPECT_EQ(status_of(server, "GET /health HTTP/1.0\r\nHost: localhost\r\nHost: localhost\r\n\r\n"),
            400);
  const auto post = [&](const std::string& fields) {
    return status_of(server, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\n" + fields +
                                 "\r\nf\r\n{\"prompt\": \"a\"}\r\n0\r\n\r\n");
  };
  EXPECT_EQ(post("Transfer-Encoding: chunked\r\n"), 200);
  EXPECT_EQ(post("Transfer-Encoding:  Chunked \r\n"), 200);
  EXPECT_EQ(post("Transfer-Encoding: gzip, chunked\r\n"), 501);
  EXPECT_EQ(post("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n"), 501);
  EXPECT_EQ(post("Transfer-Encoding: gzip\r\n"), 501);
  EXPECT_EQ(post("Transfer-Encoding: identity\r\n"), 501);
  EXPECT_EQ(post("Transfer-Encoding: chunked\r\nContent-Length: 15\r\n"), 400);
  EXPECT_EQ(status_of(server, "POST /tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"),
            400);
}

// RFC 9112, 3.2: what stands in the target is meant, whatever Host says.
TEST(Connections, TargetsThatNameTheServerOrAllOfIt) {
  SmallServer server;
  const auto ask = [&](const std::string& line, const std::string& host = "localhost") {
    return status_of(server, line + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n");
  };
  EXPECT_EQ(ask("GET http://localhost:80/v1/models"), 200);
  EXPECT_EQ(ask("GET HTTP://127.0.0.1/v1/models?a=b"), 200);
  EXPECT_EQ(ask("GET http://localhost"), 200);  // the page
  EXPECT_EQ(ask("GET http://localhost?a=b"), 200);
  EXPECT_EQ(ask("GET http://localhost/v1/models", "example.org"), 200);
  EXPECT_EQ(ask("GET http://example.org/v1/models"), 421);
  EXPECT_EQ(ask("GET /v1/models", "example.org"), 421);
  EXPECT_EQ(ask("OPTIONS *"), 204);
  EXPECT_EQ(ask("OPTIONS *", "example.org"), 421);
  EXPECT_EQ(ask("OPTIONS http://localhost"), 204);
  for (const char* malformed :
       {"GET *", "GET http://", "GET http:///v1/models", "GET http://a@localhost/v1/models",
        "GET ftp://localhost/v1/models", "GET localhost/v1/models", "GET v1/models"}) {
    EXPECT_EQ(ask(malformed), 400) << malformed;
  }
}

// Fields may trickle in by the line: all of them together are the head.
TEST(Connections, AHeadOfManyShortLinesIsBounded) {
  SmallServer server({.http = {.max_header_bytes = 8192}});
  Client client(server.port());
  client.send("GET /health HTTP/1.1\r\nHost: localhost\r\n");
  std::string lines;
  for (int i = 0; i < 20; ++i) lines += "A" + std::to_string(i) + ": b\r\n";
  for (int i = 0; i < 100 && client.send(lines); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(client.receive().status, 431);
}

TEST(Connections, WhoClosesItsSendingSideGetsItsAnswer) {
  SmallServer server({}, {.positions = 4096});
  Json body{{"prompt", "The cat"}, {"max_tokens", 2000}, {"ignore_eos", true}};
  for (const bool is_stream : {false, true}) {
    for (const char* version : {"HTTP/1.1", "HTTP/1.0"}) {
      body["stream"] = is_stream;
      std::string request = format_request("POST", "/v1/completions", body.dump());
      request.replace(request.find("HTTP/1.1"), 8, version);
      Client client(server.port());
      client.send(request);
      client.shut_down_sending();
      const Answer answer = client.receive();
      EXPECT_EQ(answer.status, 200) << version << is_stream;
      EXPECT_EQ(is_stream ? answer.is_done() : answer.json()["usage"]["completion_tokens"] == 2000,
                true)
          << version << is_stream << answer.body.substr(0, 300);
      EXPECT_TRUE(client.is_closed());
    }
  }
  Client two(server.port());
  two.send(format_request("GET", "/health", "") + format_request("GET", "/v1/models", ""));
  two.shut_down_sending();
  EXPECT_EQ(two.receive().json()["status"], "ok");
  EXPECT_EQ(two.receive().json()["object"], "list");
  EXPECT_TRUE(two.is_closed());
  Client cut(server.port());
  cut.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{");
  cut.shut_down_sending();
  EXPECT_EQ(cut.receive().status, 400);
}

TEST(Connections, WhoReallyLeavesFreesItsPlace) {
  SmallServer server({}, {.positions = 32768});
  for (const bool is_stream : {false, true}) {
    Client client(server.port());
    client.send(format_request("POST", "/v1/completions", long_answer(is_stream).dump()));
    ASSERT_EQ(wait_for_metric(server, "dsmoe_sequences_running", 1), 1);
    client.close();
    EXPECT_EQ(wait_for_metric(server, "dsmoe_clients_gone_total", is_stream ? 2 : 1),
              is_stream ? 2 : 1);
    EXPECT_EQ(wait_for_metric(server, "dsmoe_sequences_running", 0), 0);
  }
}

// Whatever they do, the end comes when the requests that ran are done.
TEST(Connections, DrainingDoesNotWaitForWhoGoesOnAsking) {
  SmallServer server({.http = {.drain_deadline = std::chrono::hours(1)}});
  std::atomic<bool> done{false};
  std::vector<std::thread> asking;
  for (int i = 0; i < 8; ++i) {
    asking.emplace_back([&] {
      while (!done) {
        try {
          Client client(server.port());
          while (!done && client.get("/").status == 200) {
          }
        } catch (const std::exception&) {  // nobody listens any more
        }
      }
    });
  }
  const auto idle = connect(server.port(), 8);
  idle[0]->send("GET /heal");
  idle[1]->send("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20\r\n\r\n{");
  server.stop();
  done = true;
  for (std::thread& thread : asking) thread.join();
  EXPECT_TRUE(idle[1]->is_closed());
}

}  // namespace
}  // namespace dsmoe::testing
