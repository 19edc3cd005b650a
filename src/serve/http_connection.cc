// Reading with absolute deadlines, writing with a bounded backlog, noticing who leaves.
#include "serve/http_connection.h"

#include "base/log.h"
#include "serve/api_error.h"

namespace dsmoe::serve {
namespace {

constexpr auto kLinger = std::chrono::milliseconds(1000);
constexpr std::size_t kSmallBody = std::size_t{4} << 10;
constexpr std::size_t kReadAtOnce = std::size_t{64} << 10;
constexpr std::size_t kMostDiscarded = std::size_t{64} << 20;

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  }
  return out;
}

std::string_view view(boost::beast::string_view text) { return {text.data(), text.size()}; }

enum class Framing { length, chunked, until_close };

std::string format_head(const HttpResponse& response, Framing framing, bool keep_alive) {
  std::string head =
      fmt::format("HTTP/1.1 {} {}\r\n", response.status, reason_phrase(response.status));
  if (response.status != 204) head += "Content-Type: " + response.content_type + "\r\n";
  if (framing == Framing::length && response.status != 204) {
    head += fmt::format("Content-Length: {}\r\n", response.body.size());
  }
  if (framing == Framing::chunked) head += "Transfer-Encoding: chunked\r\n";
  for (const auto& [name, value] : response.headers) head += name + ": " + value + "\r\n";
  head += keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  return head;
}

int status_of_parse_error(ErrorCode error) {
  if (error == http::error::body_limit) return 413;
  if (error == http::error::header_limit || error == http::error::buffer_overflow) return 431;
  return 400;
}

}  // namespace

// Keeps its connection until it is over: nothing else may be under way on it. A job may hold it
// longer and then talks to nobody.
class HttpConnection::Exchange : public Responder {
 public:
  Exchange(std::shared_ptr<HttpConnection> connection, HttpRequest head, bool is_http10)
      : connection_(std::move(connection)), head_(std::move(head)), is_http10_(is_http10) {}

  void respond(HttpResponse response) override {
    const auto connection = connection_;
    if (!connection || done_) return;
    done_ = true;
    connection->api_.add_headers(head_, response);
    std::string bytes = format_head(response, Framing::length, connection->keep_alive_);
    if (head_.method != "HEAD" && response.status != 204) bytes += response.body;
    connection->send(std::move(bytes));
  }

  void begin_stream(HttpResponse head) override {
    const auto connection = connection_;
    if (!connection || done_) return;
    if (is_http10_) connection->keep_alive_ = false;
    connection->api_.add_headers(head_, head);
    connection->send(format_head(head, is_http10_ ? Framing::until_close : Framing::chunked,
                                 connection->keep_alive_));
  }

  void write(std::string bytes) override {
    const auto connection = connection_;
    if (!connection || done_ || bytes.empty()) return;
    connection->send(is_http10_ ? std::move(bytes)
                                : fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes));
  }

  void end_stream() override {
    const auto connection = connection_;
    if (!connection || done_) return;
    done_ = true;
    connection->send(is_http10_ ? "" : "0\r\n\r\n");
  }

  void on_gone(std::function<void()> callback) override { on_gone_ = std::move(callback); }

  bool is_done() const { return done_; }
  void let_go() { connection_.reset(); }
  void tell_gone() {
    done_ = true;
    let_go();
    if (const auto callback = std::exchange(on_gone_, nullptr)) callback();
  }

 private:
  std::shared_ptr<HttpConnection> connection_;
  HttpRequest head_;
  bool is_http10_;
  bool done_ = false;
  std::function<void()> on_gone_;
};

HttpConnection::HttpConnection(tcp::socket socket, const HttpOptions& options, Api& api)
    : socket_(std::move(socket)),
      options_(options),
      api_(api),
      buffer_(options.max_header_bytes + (std::size_t{64} << 10)),
      read_timer_(socket_.get_executor()),
      write_timer_(socket_.get_executor()) {
  api_.metrics().connections.fetch_add(1);
  ErrorCode ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  socket_.non_blocking(true, ignored);
}

HttpConnection::~HttpConnection() { api_.metrics().connections.fetch_sub(1); }

void HttpConnection::start() { wait_for_request(); }

void HttpConnection::refuse_as_overloaded() {
  keep_alive_ = false;
  answer({}, json_response(error_body(503, "too many connections"), 503));
}

void HttpConnection::close_when_idle() {
  keep_alive_ = false;
  if (!exchange_ && !is_writing_ && !parser_->is_header_done()) close();
}

void HttpConnection::arm(std::chrono::milliseconds deadline) {
  timed_out_ = false;
  read_timer_.expires_after(deadline);
  read_timer_.async_wait([self = shared_from_this(), turn = ++timer_turn_](ErrorCode) {
    if (turn != self->timer_turn_) return;
    self->timed_out_ = true;
    ErrorCode ignored;
    self->socket_.cancel(ignored);
  });
}

void HttpConnection::disarm() {
  ++timer_turn_;
  read_timer_.cancel();
}

void HttpConnection::wait_for_request() {
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(options_.max_header_bytes));
  parser_->body_limit(options_.max_body_bytes);
  if (buffer_.size() > 0) return read_head();  // pipelined
  if (buffer_.capacity() > kSmallBody) buffer_.shrink_to_fit();
  arm(options_.idle_deadline);
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](ErrorCode error) {
    if (error || self->closing_) return self->close();
    self->read_head();
  });
}

void HttpConnection::read_head() {
  arm(options_.header_deadline);
  http::async_read_header(socket_, buffer_, *parser_,
                          [self = shared_from_this()](ErrorCode error, std::size_t) {
                            self->disarm();
                            self->on_head(error);
                          });
}

void HttpConnection::on_head(ErrorCode error) {
  HttpRequest head;
  if (error) return on_read_error(error, head);
  const auto& message = parser_->get();
  head.method = std::string(view(message.method_string()));
  for (const auto& field : message) {
    head.headers.emplace(lower(view(field.name_string())), std::string(view(field.value())));
  }
  keep_alive_ = keep_alive_ && message.keep_alive();
  if (!parse_target(view(message.target()), head)) {
    keep_alive_ = false;
    return answer(std::move(head),
                  json_response(error_body(400, "the request target is malformed"), 400));
  }
  if (auto response = api_.answer_head(head)) {
    // A body that nobody will read would be taken for the next request.
    if (!parser_->is_done()) keep_alive_ = false;
    return answer(std::move(head), std::move(*response));
  }
  const auto length = parser_->content_length();
  if (length && *length > options_.max_body_bytes) {
    return on_read_error(http::error::body_limit, head);
  }
  if (parser_->is_done()) return on_body({}, std::move(head));
  if (lower(head.header("expect")) == "100-continue") {
    outgoing_.push_back("HTTP/1.1 100 Continue\r\n\r\n");
    outgoing_bytes_ += outgoing_.back().size();
    write_next();
  }
  read_body(std::move(head));
}

void HttpConnection::read_body(HttpRequest head) {
  arm(options_.body_deadline);
  // One read takes what the buffer has room for, which is little more than the head was long.
  if (parser_->content_length().value_or(0) > kSmallBody) buffer_.reserve(kReadAtOnce);
  http::async_read(
      socket_, buffer_, *parser_,
      [self = shared_from_this(), head = std::move(head)](ErrorCode error, std::size_t) mutable {
        self->disarm();
        self->on_body(error, std::move(head));
      });
}

void HttpConnection::on_body(ErrorCode error, HttpRequest head) {
  if (error) return on_read_error(error, head);
  head.body = std::move(parser_->get().body());
  const auto exchange = begin_exchange(head);
  api_.handle(std::move(head), exchange);
  if (exchange_ && !exchange_->is_done()) watch_for_leaving();
}

void HttpConnection::on_read_error(ErrorCode error, const HttpRequest& head) {
  const bool is_ours =
      error.category() == http::make_error_code(http::error::bad_method).category();
  const bool nothing_came = error == http::error::end_of_stream;
  if (closing_ || nothing_came || (!timed_out_ && !is_ours)) return close();
  keep_alive_ = false;
  const int status = timed_out_ ? 408 : status_of_parse_error(error);
  const std::string text =
      timed_out_      ? "the request did not arrive in time"
      : status == 413 ? fmt::format("the body is larger than {} bytes", options_.max_body_bytes)
      : status == 431 ? fmt::format("the header is larger than {} bytes", options_.max_header_bytes)
                      : "malformed HTTP: " + error.message();
  answer(head, json_response(error_body(status, text), status));
}

std::shared_ptr<HttpConnection::Exchange> HttpConnection::begin_exchange(HttpRequest head) {
  const bool is_http10 = parser_ && parser_->is_header_done() && parser_->get().version() < 11;
  exchange_ = std::make_shared<Exchange>(shared_from_this(), std::move(head), is_http10);
  return exchange_;
}

// Answers that the HTTP side gives by itself.
void HttpConnection::answer(HttpRequest head, HttpResponse response) {
  api_.count(head, response.status);
  begin_exchange(std::move(head))->respond(std::move(response));
}

// While an answer is being made nothing is read, but the end of the stream is noticed. A client
// that has sent more already is not watched: its leaving shows when it is written to.
void HttpConnection::watch_for_leaving() {
  if (buffer_.size() > 0) return;
  socket_.async_wait(
      tcp::socket::wait_read, [self = shared_from_this(), turn = ++watch_turn_](ErrorCode error) {
        if (turn != self->watch_turn_ || !self->exchange_ || error) return;
        char byte = 0;
        ErrorCode peeked;
        const std::size_t count =
            self->socket_.receive(net::buffer(&byte, 1), tcp::socket::message_peek, peeked);
        if (peeked == net::error::would_block) return self->watch_for_leaving();
        if (count == 0 || peeked) self->gone();
      });
}

void HttpConnection::gone() {
  const auto self = shared_from_this();
  if (const auto exchange = std::exchange(exchange_, nullptr)) exchange->tell_gone();
  close();
}

void HttpConnection::send(std::string bytes) {
  if (closing_) return;
  outgoing_bytes_ += bytes.size();
  outgoing_.push_back(std::move(bytes));
  if (outgoing_bytes_ > options_.max_backlog_bytes && outgoing_.size() > 1) {
    // Not from inside the job that is writing.
    net::post(socket_.get_executor(), [self = shared_from_this()] { self->gone(); });
    return;
  }
  write_next();
}

void HttpConnection::write_next() {
  if (is_writing_ || outgoing_.empty() || closing_) return;
  is_writing_ = true;
  // What has come together meanwhile goes out together.
  while (outgoing_.size() > 1 && outgoing_[0].size() < (std::size_t{64} << 10)) {
    outgoing_[0] += outgoing_[1];
    outgoing_.erase(outgoing_.begin() + 1);
  }
  if (!write_at_once()) write_rest();
}

// A long answer may take its time, but not stand still: every piece that goes out sets the deadline
// anew.
void HttpConnection::write_rest() {
  write_timer_.expires_after(options_.write_deadline);
  write_timer_.async_wait([self = shared_from_this()](ErrorCode error) {
    // One that had struck already when its write ended finds the time set anew, or nothing to do.
    const bool is_due = self->write_timer_.expiry() <= std::chrono::steady_clock::now();
    if (!error && is_due && self->is_writing_) self->gone();
  });
  socket_.async_write_some(net::buffer(outgoing_.front()) + num_written_,
                           [self = shared_from_this()](ErrorCode error, std::size_t count) {
                             self->write_timer_.cancel();
                             self->num_written_ += count;
                             const bool is_all =
                                 self->num_written_ == self->outgoing_.front().size();
                             if (error || self->closing_ || is_all) return self->on_written(error);
                             self->write_rest();
                           });
}

// What the socket's buffer takes, nearly always all of it, needs neither a deadline nor a wake-up.
// An error is left to the write that waits, which meets it too.
bool HttpConnection::write_at_once() {
  ErrorCode error;
  num_written_ = socket_.write_some(net::buffer(outgoing_.front()), error);
  if (error || num_written_ < outgoing_.front().size()) return false;
  if (exchange_ && exchange_->is_done()) {
    // Not from inside the job that is writing.
    net::post(socket_.get_executor(), [self = shared_from_this()] { self->on_written({}); });
  } else {
    on_written({});
  }
  return true;
}

void HttpConnection::on_written(ErrorCode error) {
  is_writing_ = false;
  if (error || closing_) return gone();
  outgoing_bytes_ -= outgoing_.front().size();
  outgoing_.pop_front();
  if (!outgoing_.empty()) return write_next();
  if (exchange_ && exchange_->is_done()) finish_exchange();
}

void HttpConnection::finish_exchange() {
  const auto self = shared_from_this();
  std::exchange(exchange_, nullptr)->let_go();
  ++watch_turn_;
  ErrorCode ignored;
  socket_.cancel(ignored);
  if (!keep_alive_) return linger();
  wait_for_request();
}

// Closing with unread bytes in the socket would reset the connection and take the answer along.
void HttpConnection::linger() {
  ErrorCode error;
  socket_.shutdown(tcp::socket::shutdown_send, error);
  if (error) return close();
  arm(kLinger);
  discard();
}

void HttpConnection::discard() {
  socket_.async_read_some(net::buffer(discarded_),
                          [self = shared_from_this()](ErrorCode error, std::size_t count) {
                            self->num_discarded_ += count;
                            if (error || self->num_discarded_ > kMostDiscarded) {
                              return self->close();
                            }
                            self->discard();
                          });
}

void HttpConnection::close() {
  if (closing_) return;
  const auto self = shared_from_this();
  closing_ = true;
  disarm();
  write_timer_.cancel();
  if (const auto exchange = std::exchange(exchange_, nullptr)) exchange->tell_gone();
  ErrorCode ignored;
  socket_.shutdown(tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
}

}  // namespace dsmoe::serve
