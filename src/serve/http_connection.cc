// Reading with absolute deadlines, writing with a bounded backlog, noticing who leaves.
#include "serve/http_connection.h"

#include <limits>

#include "base/log.h"
#include "serve/api_error.h"

namespace dsmoe::serve {
namespace {

constexpr auto kLinger = std::chrono::milliseconds(1000);
constexpr std::size_t kReadForHead = std::size_t{4} << 10;
constexpr std::size_t kReadForBody = std::size_t{64} << 10;
constexpr int kReadsInTurn = 4;  // then others are looked after
constexpr std::size_t kMostDiscarded = std::size_t{64} << 20;
constexpr const char* kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

std::string_view view(boost::beast::string_view text) { return {text.data(), text.size()}; }

void log_dropped(const std::exception& e) noexcept {
  try {
    log_warning("a connection was dropped: {}", e.what());
  } catch (const std::exception&) {
    // Nor is there memory for the line.
  }
}

}  // namespace

// What a job says to a connection that is closed meanwhile is said to nobody. What fails here fails
// the connection, not the job that is in the middle of something.
class HttpConnection::Exchange : public Responder {
 public:
  Exchange(std::weak_ptr<HttpConnection> connection, const HttpRequest& head, bool is_http10)
      : connection_(std::move(connection)), head_(head), is_http10_(is_http10) {}
  ~Exchange() override {
    const auto connection = connection_.lock();
    if (connection && !is_done_) connection->give_up();  // nobody will answer any more
  }

  void respond(HttpResponse response) override {
    tell([&](HttpConnection& connection) {
      if (has_begun_) return connection.give_up();  // no place for another head
      is_done_ = true;
      connection.context_.api.add_headers(head_, response);
      std::string bytes = format_head(response, Framing::length, connection.keep_alive_);
      if (head_.method != "HEAD" && response.status != 204) bytes += response.body;
      connection.is_complete_ = true;
      connection.send(std::move(bytes));
    });
  }

  void begin_stream(HttpResponse head) override {
    tell([&](HttpConnection& connection) {
      has_begun_ = true;
      if (is_http10_) connection.keep_alive_ = false;
      connection.context_.api.add_headers(head_, head);
      connection.send(format_head(head, is_http10_ ? Framing::until_close : Framing::chunked,
                                  connection.keep_alive_));
    });
  }

  void write(std::string bytes) override {
    if (bytes.empty()) return;
    tell([&](HttpConnection& connection) {
      connection.send(is_http10_ ? std::move(bytes)
                                 : fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes));
    });
  }

  void end_stream() override {
    tell([&](HttpConnection& connection) {
      is_done_ = true;
      connection.is_complete_ = true;
      connection.send(is_http10_ ? "" : "0\r\n\r\n");
    });
  }

  void on_gone(std::function<void()> callback) override { on_gone_ = std::move(callback); }

  bool takes_interim() const { return !is_http10_ && !has_begun_ && !is_done_; }
  void tell_gone() noexcept {
    is_done_ = true;
    connection_.reset();
    try {
      if (const auto callback = std::exchange(on_gone_, nullptr)) callback();
    } catch (const std::exception& e) {
      log_dropped(e);
    }
  }

 private:
  template <class F>
  void tell(F&& f) noexcept {
    const auto connection = connection_.lock();
    if (!connection || is_done_) return;
    try {
      f(*connection);
    } catch (const std::exception& e) {
      log_dropped(e);
      connection->give_up();
    }
  }

  std::weak_ptr<HttpConnection> connection_;
  HttpRequest head_;
  bool is_http10_;
  bool has_begun_ = false, is_done_ = false;
  std::function<void()> on_gone_;
};

HttpConnection::HttpConnection(tcp::socket socket, ConnectionContext& context, Place place)
    : socket_(std::move(socket)),
      context_(context),
      place_(place),
      buffer_(context.options.max_header_bytes + kReadForBody) {
  ErrorCode ignored;
  const tcp::endpoint remote = socket_.remote_endpoint(ignored);
  address_ = remote.address();
  socket_.set_option(tcp::no_delay(true), ignored);
  socket_.non_blocking(true, ignored);
  state_ = State::idle;
  since_ = Clock::now();
  context_.api.metrics().connections.fetch_add(1);
}

HttpConnection::~HttpConnection() { close(); }

void HttpConnection::start() noexcept {
  guarded([this] { begin_request(); });
}

// What runs by itself: what goes wrong costs this connection, not the server.
template <class F>
void HttpConnection::guarded(F&& f) noexcept {
  try {
    if (is_open()) f();
  } catch (const std::exception& e) {
    log_dropped(e);
    close();
  }
}

// Not from inside the job that is writing, and without memory.
void HttpConnection::give_up() noexcept {
  cannot_go_on_ = true;
  context_.wants_sweep = true;
}

void HttpConnection::sweep(Clock::time_point now) noexcept {
  if (!is_open()) return;
  if (cannot_go_on_) return close();
  const HttpOptions& options = context_.options;
  const auto is_over = [&](std::chrono::milliseconds deadline) { return now - since_ > deadline; };
  guarded([&] {
    if (is_watching_output_ && now - last_output_ > options.write_deadline) return close();
    if (state_ == State::idle && is_over(options.idle_deadline)) return close();
    if (state_ == State::lingering && is_over(kLinger)) return close();
    if ((state_ == State::head && is_over(options.header_deadline)) ||
        (state_ == State::body && is_over(options.body_deadline))) {
      refuse(408, "the request did not arrive in time");
    }
  });
}

void HttpConnection::close_when_idle() noexcept {
  keep_alive_ = false;
  if (is_reading()) close();
}

// Who does not read its answer waits too.
std::optional<Clock::time_point> HttpConnection::waiting_since() const {
  if (is_watching_output_) return last_output_;
  if (state_ == State::answering || state_ == State::closed) return std::nullopt;
  return state_ == State::body ? last_input_ : since_;
}

void HttpConnection::begin_request() {
  state_ = State::idle;
  since_ = Clock::now();
  head_ = {};
  num_parsed_ = 0;
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(context_.options.max_header_bytes));
  parser_->body_limit(std::numeric_limits<uint64_t>::max());  // on_head() knows it
  parser_->get().body().budget = context_.bodies;
  parse();  // pipelined
  if (!is_reading()) return;
  if (buffer_.size() == 0) buffer_.shrink_to_fit();
  watch_input();
}

void HttpConnection::watch_input() {
  if (is_watching_input_ || !is_open()) return;
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](ErrorCode) {
    self->is_watching_input_ = false;
    self->guarded([&] { self->on_readable(); });
  });
  is_watching_input_ = true;
}

void HttpConnection::on_readable() {
  if (is_reading()) return receive();
  if (state_ == State::answering) return look_for_leaving();
  discard();
}

void HttpConnection::receive() {
  for (int turn = 0; turn < kReadsInTurn && is_reading(); ++turn) {
    const std::size_t most = state_ == State::body ? kReadForBody : kReadForHead;
    const std::size_t room = std::min(most, buffer_.max_size() - buffer_.size());
    if (room == 0) return refuse(431, "a chunk's header or a trailer is too large");
    ErrorCode error;
    const std::size_t count = socket_.read_some(buffer_.prepare(room), error);
    if (error == net::error::would_block) break;
    if (error) return on_end_of_input(error);
    buffer_.commit(count);
    last_input_ = Clock::now();
    parse();
    if (count < room) break;
  }
  if (!is_reading()) return;
  if (buffer_.size() == 0) buffer_.shrink_to_fit();
  watch_input();
}

void HttpConnection::on_end_of_input(ErrorCode error) {
  if (error != net::error::eof || state_ == State::idle) return close();
  refuse(400, "malformed HTTP: the request ends in its middle");
}

void HttpConnection::parse() {
  while (buffer_.size() > num_parsed_ && is_reading()) {
    if (state_ == State::idle) {
      state_ = State::head;
      since_ = Clock::now();
    }
    if (state_ == State::head ? !parse_head() : !parse_body()) return;
  }
}

// False: more has to come.
bool HttpConnection::parse_head() {
  ErrorCode error;
  const auto bytes = buffer_.data();
  num_parsed_ += parser_->put(bytes + num_parsed_, error);
  const bool is_too_long =
      std::max(num_parsed_, buffer_.size()) > context_.options.max_header_bytes;
  if (!parser_->is_header_done()) {
    if (error != http::error::need_more) {
      on_parse_error(error);
    } else if (is_too_long) {
      on_parse_error(http::error::header_limit);
    }
    return false;
  }
  if (num_parsed_ > context_.options.max_header_bytes) error = http::error::header_limit;
  const auto fault = framing_fault({static_cast<const char*>(bytes.data()), num_parsed_});
  buffer_.consume(std::exchange(num_parsed_, 0));
  if (error) {
    on_parse_error(error);
  } else {
    on_head(fault);
  }
  return true;
}

bool HttpConnection::parse_body() {
  ErrorCode error;
  buffer_.consume(parser_->put(buffer_.data(), error));
  if (error == http::error::need_more) return false;
  if (error) {
    on_parse_error(error);
  } else if (parser_->is_done()) {
    on_body();
  }
  return true;
}

// Only what is posted may be large: all else, /health without a key too, needs no body.
std::size_t HttpConnection::body_limit(const HttpRequest& head) const {
  const std::size_t most = context_.options.max_body_bytes;
  return head.method == "POST" ? most : std::min(most, kSmallBody);
}

void HttpConnection::on_head(const std::optional<FramingFault>& fault) {
  const auto& message = parser_->get();
  head_.method = std::string(view(message.method_string()));
  for (const auto& field : message) {
    head_.headers.emplace(lower(view(field.name_string())), std::string(view(field.value())));
  }
  keep_alive_ = keep_alive_ && message.keep_alive() && !context_.api.is_draining();
  if (fault) return refuse(fault->status, fault->text);
  if (!parse_target(view(message.target()), head_)) {
    return refuse(400, "the request target is malformed");
  }
  if (place_ == Place::health) {
    if (head_.path != "/health") return refuse(503, "too many connections");
    keep_alive_ = false;
  }
  if (auto response = context_.api.answer_head(head_)) {
    // A body that nobody will read would be taken for the next request.
    if (!parser_->is_done()) keep_alive_ = false;
    return answer(std::move(*response));
  }
  const std::size_t limit = body_limit(head_);
  if (parser_->content_length().value_or(0) > limit) {
    return on_parse_error(http::error::body_limit);
  }
  parser_->body_limit(limit);
  if (parser_->is_done()) return on_body();
  const bool is_http10 = message.version() < 11;  // that knows no interim answers
  if (!is_http10 && lower(head_.header("expect")) == "100-continue") send(kContinue);
  state_ = State::body;
  since_ = last_input_ = Clock::now();
  parser_->eager(true);
}

void HttpConnection::on_body() {
  const auto exchange = begin_exchange(head_);
  HttpRequest request = std::move(head_);
  request.body = std::move(parser_->get().body().text);
  request.body_share = std::move(parser_->get().body().share);
  context_.api.handle(std::move(request), exchange);
  // A client that has sent more already is not watched: its leaving shows when it is written to.
  if (state_ == State::answering && !is_complete_ && buffer_.size() == 0) watch_input();
}

void HttpConnection::on_parse_error(ErrorCode error) {
  const HttpOptions& options = context_.options;
  if (error == net::error::no_buffer_space) {
    refuse(503, "the requests of others fill the memory for bodies");
  } else if (error == http::error::body_limit) {
    refuse(413, fmt::format("the body is larger than {} bytes", body_limit(head_)));
  } else if (error == http::error::header_limit) {
    refuse(431, fmt::format("the header is larger than {} bytes", options.max_header_bytes));
  } else {
    refuse(400, "malformed HTTP: " + error.message());
  }
}

// The rest of the request is not read.
void HttpConnection::refuse(int status, const std::string& text) {
  keep_alive_ = false;
  parser_->get().body() = {};
  answer(json_response(error_body(status, text), status));
}

std::shared_ptr<HttpConnection::Exchange> HttpConnection::begin_exchange(const HttpRequest& head) {
  const bool is_http10 = parser_->is_header_done() && parser_->get().version() < 11;
  const auto exchange = std::make_shared<Exchange>(weak_from_this(), head, is_http10);
  exchange_ = exchange;
  state_ = State::answering;
  since_ = Clock::now();
  is_complete_ = false;
  return exchange;
}

// Answers that the HTTP side gives by itself.
void HttpConnection::answer(HttpResponse response) {
  context_.api.count(head_, response.status);
  begin_exchange(head_)->respond(std::move(response));
}

// While an answer is being made nothing is read, but the end of the stream is noticed.
void HttpConnection::look_for_leaving() {
  char byte = 0;
  ErrorCode error;
  const std::size_t count =
      socket_.receive(net::buffer(&byte, 1), tcp::socket::message_peek, error);
  if (error == net::error::would_block) return watch_input();
  if (error == net::error::eof) return on_half_closed();
  if (error || count == 0) close();
}

// A client that has left and one that only will not send any more look the same until something is
// sent: who has left resets the connection. A stream finds out by itself; before a plain answer an
// interim one, which every client of HTTP/1.1 passes over, does.
void HttpConnection::on_half_closed() {
  const auto exchange = exchange_.lock();
  if (exchange && exchange->takes_interim()) send(kContinue);
  socket_.async_wait(tcp::socket::wait_error, [self = shared_from_this()](ErrorCode) {
    self->guarded([&] {
      if (self->state_ == State::answering) self->close();
    });
  });
}

void HttpConnection::send(std::string bytes) {
  if (!is_open() || cannot_go_on_) return;
  outgoing_bytes_ += bytes.size();
  outgoing_.push_back(std::move(bytes));
  if (outgoing_bytes_ > context_.options.max_backlog_bytes && outgoing_.size() > 1) {
    return give_up();
  }
  if (!is_watching_output_) begin_writing();
}

// What the socket's buffer takes, nearly always all of it, needs no wake-up. An error is left to
// the one that comes otherwise, and the end of the answer too: this may be inside a job.
void HttpConnection::begin_writing() {
  if (write() != Written::all) return watch_output();
  if (!is_complete_) return;
  net::post(socket_.get_executor(), [self = shared_from_this()] {
    self->guarded([&] {
      if (self->is_complete_) self->finish_exchange();
    });
  });
}

HttpConnection::Written HttpConnection::write() {
  while (!outgoing_.empty()) {
    // What has come together meanwhile goes out together.
    while (outgoing_.size() > 1 && outgoing_[0].size() < (std::size_t{64} << 10)) {
      outgoing_[0] += outgoing_[1];
      outgoing_.erase(outgoing_.begin() + 1);
    }
    ErrorCode error;
    const std::size_t count =
        socket_.write_some(net::buffer(outgoing_.front()) + num_written_, error);
    // A long answer may take its time, but not stand still.
    if (count > 0) last_output_ = Clock::now();
    num_written_ += count;
    if (num_written_ == outgoing_.front().size()) {
      outgoing_bytes_ -= outgoing_.front().size();
      outgoing_.pop_front();
      num_written_ = 0;
    } else if (error == net::error::would_block || !error) {
      return Written::some;
    } else {
      return Written::failed;
    }
  }
  return Written::all;
}

void HttpConnection::watch_output() {
  if (!is_watching_output_) last_output_ = Clock::now();
  socket_.async_wait(tcp::socket::wait_write, [self = shared_from_this()](ErrorCode) {
    self->guarded([&] { self->on_writable(); });
  });
  is_watching_output_ = true;
}

void HttpConnection::on_writable() {
  const Written written = write();
  if (written == Written::failed) return close();
  if (written == Written::some) return watch_output();
  is_watching_output_ = false;
  if (is_complete_) finish_exchange();
}

void HttpConnection::finish_exchange() {
  is_complete_ = false;
  exchange_.reset();
  if (!keep_alive_) return linger();
  begin_request();
}

// Closing with unread bytes in the socket would reset the connection and take the answer along.
void HttpConnection::linger() {
  ErrorCode error;
  socket_.shutdown(tcp::socket::shutdown_send, error);
  if (error) return close();
  state_ = State::lingering;
  since_ = Clock::now();
  watch_input();
}

void HttpConnection::discard() {
  std::array<char, 16384> bytes;
  for (int turn = 0; turn < kReadsInTurn; ++turn) {
    ErrorCode error;
    num_discarded_ += socket_.read_some(net::buffer(bytes), error);
    if (error == net::error::would_block) break;
    if (error || num_discarded_ > kMostDiscarded) return close();
  }
  watch_input();
}

void HttpConnection::close() noexcept {
  if (!is_open()) return;
  state_ = State::closed;
  is_watching_output_ = false;
  context_.api.metrics().connections.fetch_sub(1);
  ErrorCode ignored;
  socket_.shutdown(tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
  if (const auto exchange = exchange_.lock()) exchange->tell_gone();
}

}  // namespace dsmoe::serve
