// One connection: requests in, answers out, one at a time, each under its deadlines.
#pragma once

// Boost 1.74 uses std::exchange and does not include it: these come first.
#include <array>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "serve/http_server.h"

namespace dsmoe::serve {

namespace net = boost::asio;
namespace http = boost::beast::http;
using tcp = net::ip::tcp;
using ErrorCode = boost::system::error_code;

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(tcp::socket socket, const HttpOptions& options, Api& api);
  ~HttpConnection();

  void start();
  void refuse_as_overloaded();
  bool is_answering() const { return exchange_ || is_writing_; }
  // No further request is read; an answer under way is finished.
  void close_when_idle();
  // Now, whatever is under way.
  void close();

 private:
  class Exchange;  // the Responder of the request that is being answered

  void wait_for_request();
  void read_head();
  void on_head(ErrorCode error);
  void read_body(HttpRequest head);
  void on_body(ErrorCode error, HttpRequest head);
  void on_read_error(ErrorCode error, const HttpRequest& head);
  void answer(HttpRequest head, HttpResponse response);
  std::shared_ptr<Exchange> begin_exchange(HttpRequest head);
  void watch_for_leaving();
  void gone();

  void send(std::string bytes);
  void write_next();
  bool write_at_once();
  void write_rest();
  void on_written(ErrorCode error);
  void finish_exchange();
  void linger();
  void discard();

  void arm(std::chrono::milliseconds deadline);
  void disarm();

  tcp::socket socket_;
  const HttpOptions& options_;
  Api& api_;
  boost::beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  net::steady_timer read_timer_, write_timer_;
  uint64_t timer_turn_ = 0;  // a deadline that was disarmed must not strike
  uint64_t watch_turn_ = 0;
  bool timed_out_ = false;
  bool keep_alive_ = true;
  bool closing_ = false;
  std::deque<std::string> outgoing_;
  std::size_t outgoing_bytes_ = 0;
  std::size_t num_written_ = 0;  // of the first of them
  bool is_writing_ = false;
  std::shared_ptr<Exchange> exchange_;
  std::array<char, 4096> discarded_;
  std::size_t num_discarded_ = 0;
};

}  // namespace dsmoe::serve
