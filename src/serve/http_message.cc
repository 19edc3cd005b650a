// Targets, status lines, JSON bodies.
#include "serve/http_message.h"

#include <fmt/core.h>

#include <algorithm>

namespace dsmoe::serve {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string_view next_line(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find("\r\n"));
  text.remove_prefix(std::min(text.size(), line.size() + 2));
  return line;
}

std::optional<std::string> decode(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = hex_digit(text[i + 1]), low = hex_digit(text[i + 2]);
    if (high < 0 || low < 0 || (high == 0 && low == 0)) return std::nullopt;
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

// "http://HOST/...": HOST counts instead of the header (RFC 9112, 3.2.2). False: it is no such one.
bool take_authority(std::string_view& target, HttpRequest& request) {
  const std::size_t scheme = target.find("://");
  if (scheme == std::string_view::npos) return false;
  const std::string name = lower(target.substr(0, scheme));
  if (name != "http" && name != "https") return false;
  target.remove_prefix(scheme + 3);
  const std::string_view authority = target.substr(0, target.find_first_of("/?"));
  if (authority.empty() || authority.find('@') != std::string_view::npos) return false;
  request.headers["host"] = authority;
  target.remove_prefix(authority.size());
  return true;
}

}  // namespace

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  }
  return out;
}

std::string to_text(const OrderedJson& body) {
  return body.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

HttpResponse json_response(const OrderedJson& body, int status) {
  return {.status = status, .body = to_text(body)};
}

const char* reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 421:
      return "Misdirected Request";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    default:
      return "Internal Server Error";
  }
}

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

std::optional<FramingFault> framing_fault(std::string_view head) {
  const bool is_http10 = next_line(head).ends_with("HTTP/1.0");
  int num_hosts = 0, num_encodings = 0;
  bool is_chunked = false;
  while (!head.empty()) {
    const std::string_view line = next_line(head);
    if (line.empty()) break;
    if (line[0] == ' ' || line[0] == '\t') {
      return FramingFault{400, "a header field goes on in a second line"};
    }
    const std::string name = lower(line.substr(0, line.find(':')));
    num_hosts += name == "host";
    if (name != "transfer-encoding") continue;
    std::string_view value = line.substr(line.find(':') + 1);
    value.remove_prefix(std::min(value.size(), value.find_first_not_of(" \t")));
    value = value.substr(0, value.find_last_not_of(" \t") + 1);
    is_chunked = ++num_encodings == 1 && lower(value) == "chunked";
  }
  if (num_hosts > 1) return FramingFault{400, "there is more than one Host"};
  if (num_hosts == 0 && !is_http10) return FramingFault{400, "there is no Host"};
  if (num_encodings == 0) return std::nullopt;
  if (is_http10) return FramingFault{400, "HTTP/1.0 knows no Transfer-Encoding"};
  if (!is_chunked) return FramingFault{501, "the only Transfer-Encoding here is chunked"};
  return std::nullopt;
}

bool parse_target(std::string_view target, HttpRequest& request) {
  if (target == "*") {
    request.path = target;
    return request.method == "OPTIONS";
  }
  if (!target.starts_with('/') && !take_authority(target, request)) return false;
  const std::size_t mark = target.find('?');
  const auto path = decode(target.substr(0, mark));
  if (!path) return false;
  request.path = path->empty() ? "/" : *path;
  if (mark == std::string_view::npos) return true;
  std::string_view rest = target.substr(mark + 1);
  while (!rest.empty()) {
    const std::string_view pair = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), pair.size() + 1));
    const std::size_t equals = pair.find('=');
    const auto name = decode(pair.substr(0, equals));
    const auto value =
        decode(equals == std::string_view::npos ? std::string_view() : pair.substr(equals + 1));
    if (!name || !value) return false;
    request.query[*name] = *value;
  }
  return true;
}

}  // namespace dsmoe::serve
