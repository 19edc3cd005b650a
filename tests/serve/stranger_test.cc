// A page whose owner lets its name mean this machine is of one origin with the server in the
// browser's eyes: without keys only names that nobody else can own are answered to.
#include <gtest/gtest.h>

#include "base/log.h"
#include "serve/host_rule.h"
#include "serve/small_server.h"

namespace dsmoe::testing {
namespace {

using serve::HostRule;

TEST(HostRule, LoopbackNamesAreAlwaysServed) {
  for (const char* listens_on : {"127.0.0.1", "localhost", "::1", "0.0.0.0", "192.0.2.7"}) {
    const HostRule rule(listens_on, "");
    for (const char* host : {"localhost", "localhost:8080", "LocalHost:1", "localhost.",
                             "a.localhost:80", "127.0.0.1", "127.0.0.1:8080", "127.8.9.10", "[::1]",
                             "[::1]:8080", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]:1", ""}) {
      EXPECT_TRUE(rule.serves(host)) << listens_on << " " << host;
    }
    for (const char* host : {"evil.example",
                             "evil.example:8080",
                             "localhost.evil.example",
                             "localhost:80.evil.example",
                             "127.0.0.1.evil.example",
                             "127.0.0.1:80x",
                             "localhost@evil.example",
                             "evillocalhost",
                             "[::1",
                             "[::1]x",
                             "[::1]:8a",
                             "127.1",
                             "0x7f000001",
                             "2130706433",
                             ":8080",
                             " localhost",
                             "localhost ",
                             "localhost/",
                             "localhost,evil.example",
                             "::1"}) {
      EXPECT_FALSE(rule.serves(host)) << listens_on << " " << host;
    }
  }
}

TEST(HostRule, AnOriginIsWhatABrowserSends) {
  for (const char* origin :
       {"http://my.example", "https://my.example:8443", "http://127.0.0.1", "http://[::1]:3000"}) {
    EXPECT_TRUE(serve::is_origin(origin)) << origin;
  }
  for (const char* other : {"", "*", "foo", "my.example", "http://", "http://my.example/",
                            "http://my.example/page", "ftp://my.example", "http://a@my.example",
                            "http://my.example:port", "http://my example", "null"}) {
    EXPECT_FALSE(serve::is_origin(other)) << other;
  }
}

TEST(HostRule, AddressesAreServedWhereOthersMayReachThem) {
  for (const char* address : {"192.0.2.1:8080", "[2001:db8::1]:8080", "0.0.0.0:8080"}) {
    EXPECT_TRUE(HostRule("0.0.0.0", "").serves(address)) << address;
    EXPECT_TRUE(HostRule("::", "").serves(address)) << address;
    EXPECT_TRUE(HostRule("192.0.2.9", "").serves(address)) << address;
    EXPECT_FALSE(HostRule("127.0.0.1", "").serves(address)) << address;
    EXPECT_FALSE(HostRule("::1", "").serves(address)) << address;
    EXPECT_FALSE(HostRule("localhost", "").serves(address)) << address;
  }
}

TEST(HostRule, TheOperatorMayGiveAName) {
  const HostRule rule("127.0.0.1", "https://Chat.example.org:8443");
  EXPECT_TRUE(rule.serves("chat.example.org"));
  EXPECT_TRUE(rule.serves("CHAT.example.org:80"));
  EXPECT_TRUE(rule.serves("localhost"));
  EXPECT_FALSE(rule.serves("example.org"));
  EXPECT_FALSE(rule.serves("x.chat.example.org"));
  EXPECT_TRUE(HostRule("127.0.0.1", "*").serves("anything.example"));
  EXPECT_FALSE(HostRule("127.0.0.1", "null").serves("null"));
}

// Every route, as a browser asks for it under such a name.
class Stranger : public ::testing::Test {
 protected:
  void SetUp() override { set_log_level(LogLevel::quiet); }
  static Answer ask(SmallServer& server, const std::string& line, const std::string& headers) {
    Client client(server.port());
    const bool is_post = line.starts_with("POST");
    const std::string body = is_post ? R"({"prompt": "a", "max_tokens": 1, "tokens": [5]})" : "";
    client.send(fmt::format("{} HTTP/1.1\r\n{}Content-Length: {}\r\n\r\n{}", line, headers,
                            body.size(), body));
    return client.receive();
  }
  static constexpr const char* kLines[] = {"GET /",
                                           "GET /index.html",
                                           "GET /v1/models",
                                           "GET /v1/experts",
                                           "GET /v1/experts/tokens?layer=1",
                                           "GET /metrics",
                                           "GET /version",
                                           "GET /tokenizer_info",
                                           "GET /nothing",
                                           "DELETE /v1/experts",
                                           "POST /v1/completions",
                                           "POST /tokenize",
                                           "POST /detokenize",
                                           "POST /v1/experts/reset",
                                           "OPTIONS /v1/completions"};
};

TEST_F(Stranger, ANameThatSomebodyElseMayOwnIsRefused) {
  SmallServer server;
  for (const char* line : kLines) {
    const Answer refused = ask(server, line, "Host: evil.example:8080\r\n");
    EXPECT_EQ(refused.status, 421) << line;
    const std::string message = refused.json()["error"]["message"];
    EXPECT_NE(message.find("\"evil.example:8080\""), std::string::npos) << message;
    EXPECT_NE(message.find("--api-key"), std::string::npos) << message;
    EXPECT_NE(message.find("--cors-origin"), std::string::npos) << message;
    EXPECT_EQ(refused.headers.count("access-control-allow-origin"), 0u);
    const Answer same_origin =
        ask(server, line, "Host: evil.example:8080\r\nOrigin: http://evil.example:8080\r\n");
    EXPECT_EQ(same_origin.status, 421) << line;
    const int served = ask(server, line, "Host: localhost:8080\r\n").status;
    EXPECT_TRUE(served / 100 == 2 || served == 404) << line << served;
  }
  // Whatever watches a server may call it as it likes.
  EXPECT_EQ(ask(server, "GET /health", "Host: evil.example\r\n").status, 200);
}

TEST_F(Stranger, APageElsewhereMayNotEvenRead) {
  SmallServer server;
  for (const char* line : kLines) {
    if (std::string_view(line).starts_with("OPTIONS")) continue;  // tells nothing
    for (const char* origin : {"http://evil.example", "null", "http://localhost.evil.example"}) {
      EXPECT_EQ(ask(server, line, fmt::format("Host: localhost\r\nOrigin: {}\r\n", origin)).status,
                403)
          << line << origin;
    }
    for (const char* origin :
         {"http://localhost:3000", "https://app.localhost", "http://[::1]:9"}) {
      const Answer served =
          ask(server, line, fmt::format("Host: localhost\r\nOrigin: {}\r\n", origin));
      EXPECT_TRUE(served.status / 100 == 2 || served.status == 404) << line << origin;
      EXPECT_EQ(served.headers.at("access-control-allow-origin"), origin);
    }
  }
}

TEST_F(Stranger, ANamedPageIsServedUnderItsName) {
  SmallServerOptions options;
  options.api.cors_origin = "https://chat.example.org";
  SmallServer server(options);
  EXPECT_EQ(ask(server, "GET /v1/models",
                "Host: chat.example.org\r\nOrigin: https://chat.example.org\r\n")
                .status,
            200);
  EXPECT_EQ(ask(server, "GET /v1/models", "Host: evil.example\r\n").status, 421);
}

TEST_F(Stranger, WithKeysNamesDoNotMatter) {
  SmallServerOptions options;
  options.api.keys = {"secret"};
  SmallServer server(options);
  const std::string headers = "Host: evil.example\r\nOrigin: http://evil.example\r\n";
  EXPECT_EQ(ask(server, "GET /v1/models", headers).status, 401);
  EXPECT_EQ(ask(server, "GET /v1/models", headers + "Authorization: Bearer secret\r\n").status,
            200);
  EXPECT_EQ(ask(server, "GET /", headers).status, 200);
}

TEST_F(Stranger, WithoutKeysOnAnAddressThatOthersReach) {
  SmallServerOptions options;
  options.http.host = "0.0.0.0";
  SmallServer server(options);
  EXPECT_EQ(ask(server, "GET /v1/models", "Host: 192.0.2.1:8080\r\n").status, 200);
  EXPECT_EQ(ask(server, "POST /v1/completions",
                "Host: 192.0.2.1:8080\r\nOrigin: http://192.0.2.1:8080\r\n")
                .status,
            200);  // our own page
  EXPECT_EQ(ask(server, "GET /v1/models", "Host: evil.example\r\n").status, 421);
  EXPECT_EQ(
      ask(server, "GET /v1/models", "Host: 192.0.2.1\r\nOrigin: http://evil.example\r\n").status,
      403);
}

}  // namespace
}  // namespace dsmoe::testing
