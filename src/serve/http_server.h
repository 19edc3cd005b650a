// HTTP/1.1 on one thread: connections, limits, deadlines, draining.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "serve/api.h"

namespace dsmoe::serve {

struct HttpOptions {
  std::string host = "127.0.0.1";  // an address, or localhost
  uint16_t port = 8080;            // 0: any free one
  std::size_t max_connections = 1024;
  std::size_t max_connections_per_address = 0;  // 0: a quarter; all of them for this machine's own
  std::size_t max_header_bytes = std::size_t{16} << 10;
  std::size_t max_body_bytes = std::size_t{8} << 20;
  std::size_t max_bodies_bytes = std::size_t{256} << 20;  // all together; small ones do not count
  std::size_t max_backlog_bytes = std::size_t{16} << 20;  // that a slow reader may leave unread
  // Absolute: they run from the first byte of a head or body, however it trickles.
  std::chrono::milliseconds header_deadline{10'000};
  std::chrono::milliseconds body_deadline{30'000};
  std::chrono::milliseconds idle_deadline{60'000};   // between requests
  std::chrono::milliseconds write_deadline{30'000};  // for an answer that stands still
  std::chrono::milliseconds drain_deadline{30'000};
  bool handles_signals = false;  // SIGTERM, SIGINT and SIGHUP drain; a second one ends at once
  std::function<void()> on_drain = {};  // told when draining begins
};

// True for an address that only this machine can reach.
bool is_loopback(const std::string& host);

class HttpServer {
 public:
  // Binds and listens. Throws Error(usage) on a bad address, Error(io) when it is taken,
  // Error(resource) where too few files may be open at once.
  explicit HttpServer(HttpOptions options);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;
  Post post();  // onto the thread that runs run()

  // Serves on the calling thread until shut down and drained.
  void run(Api& api);
  // From any thread: running requests finish, new ones get 503; what is not done at the drain
  // deadline is ended.
  void shut_down();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dsmoe::serve
