// Just enough HTTP to read what the server writes.
#include "serve/http_client.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace dsmoe::testing {

Json Answer::json() const { return Json::parse(body); }

std::vector<Json> Answer::events() const {
  std::vector<Json> events;
  std::size_t at = 0;
  while ((at = body.find("data: ", at)) != std::string::npos) {
    const std::size_t end = body.find("\n\n", at);
    const std::string text = body.substr(at + 6, end - at - 6);
    if (text != "[DONE]") events.push_back(Json::parse(text));
    at = end;
  }
  return events;
}

bool Answer::is_done() const { return body.ends_with("data: [DONE]\n\n"); }

Client::Client(uint16_t port, int unread_bytes, const char* from) {
  socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;
  if (unread_bytes > 0) {
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &unread_bytes, sizeof(unread_bytes));
  }
  ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  if (from != nullptr) {
    address.sin_addr.s_addr = ::inet_addr(from);
    ::bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  }
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    ::close(socket_);
    throw std::runtime_error("cannot connect");
  }
}

Client::~Client() { close(); }

void Client::close() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

void Client::shut_down_sending() { ::shutdown(socket_, SHUT_WR); }

bool Client::send(const std::string& bytes) {
  std::size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t count = ::send(socket_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) return false;
    sent += static_cast<std::size_t>(count);
  }
  return true;
}

// One call to the system for each piece, as a client that costs little.
bool Client::fill(double seconds) {
  if (seconds != deadline_) {
    const timeval time{.tv_sec = static_cast<time_t>(seconds),
                       .tv_usec = static_cast<suseconds_t>(std::fmod(seconds, 1.0) * 1e6)};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time));
    deadline_ = seconds;
  }
  char bytes[65536];
  const ssize_t count = ::recv(socket_, bytes, sizeof(bytes), 0);
  if (count <= 0) return false;
  buffer_.append(bytes, static_cast<std::size_t>(count));
  return true;
}

bool Client::is_closed() {
  pollfd poll_for{.fd = socket_, .events = POLLIN, .revents = 0};
  char byte = 0;
  return buffer_.empty() && ::poll(&poll_for, 1, 60000) == 1 &&
         ::recv(socket_, &byte, 1, MSG_PEEK) <= 0;
}

std::string Client::receive_some(double seconds) {
  if (buffer_.empty()) fill(seconds);
  return std::exchange(buffer_, "");
}

Answer Client::receive(double seconds) {
  Answer answer;
  std::size_t end = 0;
  for (;;) {
    while ((end = buffer_.find("\r\n\r\n")) == std::string::npos) {
      if (!fill(seconds)) return answer;
    }
    if (!buffer_.starts_with("HTTP/1.1 100")) break;
    buffer_.erase(0, end + 4);
  }
  const std::string head = buffer_.substr(0, end + 2);
  buffer_.erase(0, end + 4);
  answer.status = std::stoi(head.substr(9, 3));
  for (std::size_t at = head.find("\r\n") + 2; at < head.size();) {
    const std::size_t line_end = head.find("\r\n", at);
    const std::size_t colon = head.find(": ", at);
    std::string name = head.substr(at, colon - at);
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    answer.headers[name] = head.substr(colon + 2, line_end - colon - 2);
    at = line_end + 2;
  }
  if (answer.headers.count("content-length") > 0) {
    const std::size_t length = std::stoul(answer.headers["content-length"]);
    while (buffer_.size() < length && fill(seconds)) {
    }
    answer.body = buffer_.substr(0, length);
    buffer_.erase(0, std::min(length, buffer_.size()));
  } else if (answer.headers["transfer-encoding"] == "chunked") {
    for (;;) {
      while ((end = buffer_.find("\r\n")) == std::string::npos) {
        if (!fill(seconds)) return answer;
      }
      const std::size_t size = std::stoul(buffer_.substr(0, end), nullptr, 16);
      while (buffer_.size() < end + 2 + size + 2) {
        if (!fill(seconds)) return answer;
      }
      if (size > 0) answer.chunks.push_back(buffer_.substr(end + 2, size));
      buffer_.erase(0, end + 2 + size + 2);
      if (size == 0) break;
      answer.body += answer.chunks.back();
    }
  } else if (answer.status != 204) {
    while (fill(seconds)) {
    }
    answer.body = std::exchange(buffer_, "");
  }
  return answer;
}

std::string format_request(const std::string& method, const std::string& target,
                           const std::string& body, const std::vector<std::string>& headers) {
  std::string text = fmt::format("{} {} HTTP/1.1\r\nHost: localhost\r\n", method, target);
  for (const std::string& header : headers) text += header + "\r\n";
  if (!body.empty() || method == "POST") {
    text += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
  }
  return text + "\r\n" + body;
}

Answer Client::request(const std::string& method, const std::string& target,
                       const std::string& body, const std::vector<std::string>& headers) {
  send(format_request(method, target, body, headers));
  return receive();
}

}  // namespace dsmoe::testing
