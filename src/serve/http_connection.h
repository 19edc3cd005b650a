// One connection: requests in, answers out, one at a time, each under its deadlines.
#pragma once

// Boost 1.74 uses std::exchange and does not include it: these come first.
#include <array>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "serve/body_budget.h"
#include "serve/http_server.h"

namespace dsmoe::serve {

namespace net = boost::asio;
namespace http = boost::beast::http;
using tcp = net::ip::tcp;
using ErrorCode = boost::system::error_code;
using Clock = std::chrono::steady_clock;

// What all connections of a server share.
struct ConnectionContext {
  const HttpOptions& options;
  Api& api;
  std::shared_ptr<BodyBudget> bodies;
  bool wants_sweep = false;  // a connection cannot go on and waits to be closed
};

// What the parser makes of a body.
struct BudgetedBody {
  using value_type = GrowingBody;
  class reader {
   public:
    template <bool is_request, class Fields>
    reader(http::header<is_request, Fields>&, value_type& body) : body_(body) {}
    void init(const boost::optional<uint64_t>& length, ErrorCode& error) {
      body_.announced = length.value_or(0);
      error = {};
    }
    template <class Buffers>
    std::size_t put(const Buffers& buffers, ErrorCode& error) {
      const std::size_t count = net::buffer_size(buffers);
      error = {};
      if (!body_.make_room_for(count)) {
        error = net::error::no_buffer_space;
        return 0;
      }
      for (const net::const_buffer buffer : boost::beast::buffers_range_ref(buffers)) {
        body_.text.append(static_cast<const char*>(buffer.data()), buffer.size());
      }
      return count;
    }
    void finish(ErrorCode& error) { error = {}; }

   private:
    value_type& body_;
  };
};

// The server owns it, and so do the handlers of what it waits for; both let go once it is closed.
// The request's way back (Exchange) belongs to whoever answers and knows its connection weakly: if
// it is lost unanswered the connection is closed.
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  enum class Place { any, health };  // health: everything else is refused, there is no room

  HttpConnection(tcp::socket socket, ConnectionContext& context, Place place);
  ~HttpConnection();

  void start() noexcept;
  // Closes what is over its deadline, or cannot go on.
  void sweep(Clock::time_point now) noexcept;
  // No further request is read; an answer under way is finished.
  void close_when_idle() noexcept;
  // Now, whatever is under way.
  void close() noexcept;

  bool is_open() const { return state_ != State::closed; }
  // Answers since before `then`, or still sends such an answer.
  bool is_answering_since(Clock::time_point then) const {
    return state_ == State::answering && since_ < then;
  }
  // Since when nothing has come of a request, or not all of it; none while it is answered.
  std::optional<Clock::time_point> waiting_since() const;
  Place place() const { return place_; }
  const net::ip::address& address() const { return address_; }

 private:
  class Exchange;  // the Responder of the request that is being answered
  enum class State { idle, head, body, answering, lingering, closed };
  enum class Written { all, some, failed };

  template <class F>
  void guarded(F&& f) noexcept;
  void give_up() noexcept;

  void begin_request();
  bool is_reading() const { return state_ <= State::body; }
  void watch_input();
  void on_readable();
  void receive();
  void on_end_of_input(ErrorCode error);
  void parse();
  bool parse_head();
  bool parse_body();
  void on_head(const std::optional<FramingFault>& fault);
  std::size_t body_limit(const HttpRequest& head) const;
  void on_body();
  void on_parse_error(ErrorCode error);
  void refuse(int status, const std::string& text);

  std::shared_ptr<Exchange> begin_exchange(const HttpRequest& head);
  void answer(HttpResponse response);
  void look_for_leaving();
  void on_half_closed();

  void send(std::string bytes);
  void begin_writing();
  Written write();
  void watch_output();
  void on_writable();
  void finish_exchange();
  void linger();
  void discard();

  tcp::socket socket_;
  ConnectionContext& context_;
  const Place place_;
  net::ip::address address_;
  boost::beast::flat_buffer buffer_;
  std::optional<http::request_parser<BudgetedBody>> parser_;
  std::size_t num_parsed_ = 0;  // of the head, which stays in the buffer until it is complete
  HttpRequest head_;
  State state_ = State::closed;
  Clock::time_point since_;       // of this state
  Clock::time_point last_input_;  // of this body
  bool is_watching_input_ = false, is_watching_output_ = false;
  bool cannot_go_on_ = false;  // the next sweep closes it
  bool keep_alive_ = true;
  std::weak_ptr<Exchange> exchange_;
  bool is_complete_ = false;  // all of the answer is in `outgoing_`
  bool is_half_closed_ = false;
  std::deque<std::string> outgoing_;
  std::size_t outgoing_bytes_ = 0;
  std::size_t num_written_ = 0;  // of the first of them
  Clock::time_point last_output_;
  std::size_t num_discarded_ = 0;
};

}  // namespace dsmoe::serve
