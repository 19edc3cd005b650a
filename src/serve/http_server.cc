// Accepting, draining, signals.
#include "serve/http_server.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <cstring>

#include "base/log.h"
#include "base/memory_reserve.h"
#include "serve/connection_table.h"

namespace dsmoe::serve {
namespace {

constexpr auto kTick = std::chrono::milliseconds(50);
constexpr auto kAfterAbort = std::chrono::milliseconds(1000);  // to send the last errors
constexpr int kAcceptsInTurn = 64;                             // then others are looked after

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

// Fewer, and nobody could be accepted, or only some.
void expect_descriptors() {
  constexpr rlim_t kLeast = 64;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kLeast) return;
  fail(ErrorKind::resource,
       "a process may have {} files open at once here, connections among them; serve needs {} at "
       "least, and one more for each connection: raise it with ulimit -n",
       limit.rlim_cur, kLeast);
}

bool is_ignored(int signal) {
  struct sigaction now {};
  return ::sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

// Whatever goes wrong, most likely for want of memory, the server goes on: what has to be done is
// tried again at the next tick.
template <class F>
void attempt(F&& f) noexcept {
  try {
    f();
  } catch (const std::exception& e) {
    try {
      log_warning("the server goes on after: {}", e.what());
    } catch (const std::exception&) {
      // Nor is there memory for the line.
    }
  }
}

}  // namespace

bool is_loopback(const std::string& host) { return parse_address(host).is_loopback(); }

// Nothing here hangs on a handler that must not be lost: at every tick what ought to be waited for
// is, deadlines are looked at, and draining goes on.
struct HttpServer::State {
  explicit State(HttpOptions its_options)
      : options(std::move(its_options)), acceptor(io), signals(io) {}

  enum class Phase { serving, draining, ending, over };

  HttpOptions options;
  net::io_context io{1};
  tcp::acceptor acceptor;
  net::signal_set signals;
  std::atomic<int> num_asked_to_stop{0};
  Phase phase = Phase::serving;
  bool is_accepting = false, is_watching_signals = false;
  Clock::time_point drain_begin, drain_end;
  bool is_aborted = false;

  void serve(Api& api) {
    ConnectionContext context{options, api, std::make_shared<BodyBudget>(options.max_bodies_bytes)};
    ConnectionTable table(context);
    const auto work = net::make_work_guard(io);
    Clock::time_point next_tick = Clock::now();
    int num_seen = 0;
    while (phase != Phase::over) {
      const int num_asked = num_asked_to_stop.load();
      if (num_asked != num_seen || context.wants_sweep || Clock::now() >= next_tick) {
        num_seen = num_asked;
        next_tick = Clock::now() + kTick;
        attempt([&] { watch_signals(api); });
        attempt([&] { accept(table); });
        api.hear_jobs();
        table.sweep();
        if (!restore_memory_reserve()) table.make_room();
        attempt([&] { drain(api, table, num_asked); });
      }
      attempt([&] { io.run_one_until(next_tick); });
    }
  }

  void accept(ConnectionTable& table) {
    if (is_accepting || phase >= Phase::ending) return;
    acceptor.async_wait(tcp::acceptor::wait_read, [this, &table](ErrorCode error) {
      is_accepting = false;
      if (error) return;
      attempt([&] {
        if (accept_some(table)) accept(table);
      });
    });
    is_accepting = true;
  }

  // False: not now, at the next tick.
  bool accept_some(ConnectionTable& table) {
    for (int turn = 0; turn < kAcceptsInTurn; ++turn) {
      ErrorCode error;
      tcp::socket socket = acceptor.accept(error);
      if (error == net::error::would_block) return true;
      if (error == net::error::connection_aborted) continue;
      if (!error) {
        attempt([&] { table.take(std::move(socket)); });
      } else if (!table.make_room()) {  // out of descriptors, perhaps
        return false;
      }
    }
    return true;
  }

  void watch_signals(Api& api) {
    if (is_watching_signals || !options.handles_signals || phase >= Phase::ending) return;
    signals.async_wait([this, &api](ErrorCode error, int number) {
      is_watching_signals = false;
      if (error) return;
      num_asked_to_stop.fetch_add(1);
      attempt([&] {
        log_info("SIG{}: finishing {} running requests", ::sigabbrev_np(number), api.num_jobs());
      });
    });
    is_watching_signals = true;
  }

  // Asked twice it ends at once. What is still being sent to slow readers goes out, within bounds.
  void drain(Api& api, ConnectionTable& table, int num_asked) {
    const auto now = Clock::now();
    if (phase == Phase::serving) {
      if (num_asked == 0) return;
      phase = Phase::draining;
      api.drain();
      drain_begin = now;
      drain_end = now + options.drain_deadline;
      if (options.on_drain) options.on_drain();
    }
    if (num_asked > 1) drain_end = std::min(drain_end, now);
    if (phase == Phase::draining) {
      const bool is_answering = api.num_jobs() > 0 || table.is_answering_since(drain_begin);
      if (is_answering && now < drain_end + kAfterAbort) {
        if (now < drain_end || is_aborted) return;
        api.abort_all();
        is_aborted = true;
        return;
      }
      phase = Phase::ending;
      drain_end = now + kAfterAbort;
      ErrorCode ignored;
      acceptor.close(ignored);
      signals.cancel(ignored);
      table.close_idle();
    }
    if (table.is_empty() || now > drain_end) phase = Phase::over;
  }
};

HttpServer::HttpServer(HttpOptions options) : state_(std::make_unique<State>(std::move(options))) {
  expect_descriptors();
  keep_memory_reserve();
  const tcp::endpoint endpoint(parse_address(state_->options.host), state_->options.port);
  try {
    state_->acceptor.open(endpoint.protocol());
    state_->acceptor.set_option(tcp::acceptor::reuse_address(true));
    state_->acceptor.bind(endpoint);
    state_->acceptor.listen(1024);
    state_->acceptor.non_blocking(true);
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
    if (!is_ignored(SIGHUP)) state_->signals.add(SIGHUP);  // nohup asks for that
  }
}

HttpServer::~HttpServer() = default;

uint16_t HttpServer::port() const { return state_->acceptor.local_endpoint().port(); }

Post HttpServer::post() {
  return [this](std::function<void()> f) { net::post(state_->io, std::move(f)); };
}

void HttpServer::run(Api& api) { state_->serve(api); }

void HttpServer::shut_down() {
  state_->num_asked_to_stop.fetch_add(1);
  attempt([&] { net::post(state_->io, [] {}); });  // otherwise it is seen at the next tick
}

}  // namespace dsmoe::serve
