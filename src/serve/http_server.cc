// Accepting, draining, signals.
#include "serve/http_server.h"

#include <algorithm>
#include <csignal>
#include <list>

#include "base/log.h"
#include "serve/http_connection.h"

namespace dsmoe::serve {
namespace {

constexpr auto kDrainPoll = std::chrono::milliseconds(20);
constexpr auto kAfterAbort = std::chrono::milliseconds(1000);  // to send the last errors

net::ip::address parse_address(const std::string& host) {
  if (host == "localhost") return net::ip::make_address("127.0.0.1");
  ErrorCode error;
  const net::ip::address address = net::ip::make_address(host, error);
  if (error) {
    fail(ErrorKind::usage, "--host {}: expected an address such as 127.0.0.1, 0.0.0.0 or ::1",
         host);
  }
  return address;
}

}  // namespace

bool is_loopback(const std::string& host) { return parse_address(host).is_loopback(); }

struct HttpServer::State {
  explicit State(HttpOptions its_options)
      : options(std::move(its_options)),
        acceptor(io),
        accept_timer(io),
        drain_timer(io),
        signals(io) {}

  HttpOptions options;
  net::io_context io{1};
  tcp::acceptor acceptor;
  net::steady_timer accept_timer, drain_timer;
  net::signal_set signals;
  Api* api = nullptr;
  std::list<std::weak_ptr<HttpConnection>> connections;
  std::chrono::steady_clock::time_point drain_end;
  bool aborted = false;

  void accept() {
    acceptor.async_accept([this](ErrorCode error, tcp::socket socket) {
      if (error == net::error::operation_aborted) return;
      if (error) {  // out of descriptors, perhaps: later
        accept_timer.expires_after(std::chrono::milliseconds(100));
        accept_timer.async_wait([this](ErrorCode stopped) {
          if (!stopped) accept();
        });
        return;
      }
      take(std::move(socket));
      accept();
    });
  }

  void take(tcp::socket socket) {
    connections.remove_if([](const auto& connection) { return connection.expired(); });
    const auto connection = std::make_shared<HttpConnection>(std::move(socket), options, *api);
    if (connections.size() >= options.max_connections) return connection->refuse_as_overloaded();
    connections.push_back(connection);
    connection->start();
  }

  void wait_for_signal() {
    signals.async_wait([this](ErrorCode error, int number) {
      if (error) return;
      log_info("{}: finishing {} running requests", number == SIGTERM ? "SIGTERM" : "SIGINT",
               api->num_jobs());
      drain();
      wait_for_signal();
    });
  }

  // The second call ends at once.
  void drain() {
    const bool again = api->is_draining();
    api->drain();
    if (!again && options.on_drain) options.on_drain();
    drain_end = std::chrono::steady_clock::now();
    if (!again) drain_end += options.drain_deadline;
    if (!again) poll_drain();
  }

  // An answer that is complete here may still be on its way to a client that reads slowly.
  bool is_answering() const {
    return api->num_jobs() > 0 ||
           std::any_of(connections.begin(), connections.end(), [](const auto& weak) {
             const auto connection = weak.lock();
             return connection && connection->is_answering();
           });
  }

  void poll_drain() {
    const auto now = std::chrono::steady_clock::now();
    if (!is_answering() || (aborted && now > drain_end + kAfterAbort)) return end();
    if (now >= drain_end && !aborted) {
      aborted = true;
      api->abort_all();
    }
    drain_timer.expires_after(kDrainPoll);
    drain_timer.async_wait([this](ErrorCode error) {
      if (!error) poll_drain();
    });
  }

  // What is still being written goes out; then nothing is left to run.
  void end() {
    drain_end = std::chrono::steady_clock::now() + kAfterAbort;
    ErrorCode ignored;
    acceptor.close(ignored);
    accept_timer.cancel();
    signals.cancel(ignored);
    for (const auto& weak : connections) {
      if (const auto connection = weak.lock()) connection->close_when_idle();
    }
    poll_end();
  }

  void poll_end() {
    connections.remove_if([](const auto& connection) { return connection.expired(); });
    if (connections.empty() || std::chrono::steady_clock::now() > drain_end) return io.stop();
    drain_timer.expires_after(kDrainPoll);
    drain_timer.async_wait([this](ErrorCode) { poll_end(); });
  }
};

HttpServer::HttpServer(HttpOptions options) : state_(std::make_unique<State>(std::move(options))) {
  const tcp::endpoint endpoint(parse_address(state_->options.host), state_->options.port);
  try {
    state_->acceptor.open(endpoint.protocol());
    state_->acceptor.set_option(tcp::acceptor::reuse_address(true));
    state_->acceptor.bind(endpoint);
    state_->acceptor.listen(1024);
  } catch (const boost::system::system_error& e) {
    fail(ErrorKind::io, "cannot listen on {} port {}: {}; choose another with {}",
         state_->options.host, state_->options.port, e.code().message(),
         e.code() == net::error::address_in_use || e.code() == net::error::access_denied
             ? "--port"
             : "--host");
  }
  // Here, not in run(): whoever takes them over for a while finds them in place.
  if (state_->options.handles_signals) {
    state_->signals.add(SIGTERM);
    state_->signals.add(SIGINT);
  }
}

HttpServer::~HttpServer() = default;

uint16_t HttpServer::port() const { return state_->acceptor.local_endpoint().port(); }

Post HttpServer::post() {
  return [this](std::function<void()> f) { net::post(state_->io, std::move(f)); };
}

void HttpServer::run(Api& api) {
  state_->api = &api;
  if (state_->options.handles_signals) state_->wait_for_signal();
  state_->accept();
  for (;;) {
    try {
      state_->io.run();
      break;
    } catch (const std::exception& e) {  // its handler is gone, and with it its connection
      log_warning("a connection was dropped: {}", e.what());
    }
  }
  for (const auto& weak : state_->connections) {
    if (const auto connection = weak.lock()) connection->close();
  }
}

void HttpServer::shut_down() {
  net::post(state_->io, [this] { state_->drain(); });
}

}  // namespace dsmoe::serve
