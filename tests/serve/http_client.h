// A blocking HTTP client over plain sockets that can also misbehave.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"

namespace dsmoe::testing {

struct Answer {
  int status = 0;                              // 0: the connection ended without an answer
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined
  std::vector<std::string> chunks;
  Json json() const;
  std::vector<Json> events() const;  // of a stream, without [DONE]
  bool is_done() const;              // the stream ended with [DONE]
};

class Client {
 public:
  // The system keeps about `unread_bytes` for a client that does not read; 0: as much as it likes,
  // which may be tens of megabytes.
  // `from`: an address of this machine.
  explicit Client(uint16_t port, int unread_bytes = 0, const char* from = nullptr);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // False when the other side has closed.
  bool send(const std::string& bytes);
  // One answer; waits at most `seconds`.
  Answer receive(double seconds = 60);
  // Bytes as they come, at least one; empty at the end or after `seconds`.
  std::string receive_some(double seconds = 60);
  // Waits for the other side to close; false when bytes come, or nothing for a minute.
  bool is_closed();
  void close();
  void shut_down_sending();

  Answer request(const std::string& method, const std::string& target, const std::string& body = "",
                 const std::vector<std::string>& headers = {});
  Answer get(const std::string& target) { return request("GET", target); }
  Answer post(const std::string& target, const Json& body) {
    return request("POST", target, body.dump());
  }

 private:
  bool fill(double seconds);
  int socket_ = -1;
  double deadline_ = 0;  // of the socket's reads; 0: none yet
  std::string buffer_;
};

std::string format_request(const std::string& method, const std::string& target,
                           const std::string& body, const std::vector<std::string>& headers = {});

}  // namespace dsmoe::testing
