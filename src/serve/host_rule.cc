// Names and addresses as browsers write them.
#include "serve/host_rule.h"

#include <arpa/inet.h>

namespace dsmoe::serve {
namespace {

// In lower case, without port, brackets and the dot of the root; empty when it is malformed.
std::string name_of(std::string_view host) {
  const std::size_t end = host.starts_with('[') ? host.find(']') + 1 : host.find(':');
  if (end == 0) return "";  // no closing bracket
  const std::string_view port = end < host.size() ? host.substr(end) : std::string_view();
  if (!port.empty() &&
      (port[0] != ':' || port.find_first_not_of("0123456789", 1) != std::string_view::npos)) {
    return "";
  }
  std::string name(host.substr(0, end));
  if (name.ends_with('.')) name.pop_back();
  for (char& c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  }
  return name;
}

// Only as browsers write them: four decimal numbers, or IPv6 in brackets.
struct Address {
  bool is_one = false;
  bool is_loopback = false;
};

Address read_address(const std::string& name) {
  if (in_addr v4{}; inet_pton(AF_INET, name.c_str(), &v4) == 1) {
    return {.is_one = true, .is_loopback = ntohl(v4.s_addr) >> 24 == 127};
  }
  in6_addr v6{};
  if (name.size() < 2 || name.front() != '[' ||
      inet_pton(AF_INET6, name.substr(1, name.size() - 2).c_str(), &v6) != 1) {
    return {};
  }
  const bool is_mapped = IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127;
  return {.is_one = true, .is_loopback = IN6_IS_ADDR_LOOPBACK(&v6) || is_mapped};
}

// No name server is asked for "localhost" and what ends in it.
bool is_loopback_name(const std::string& name) {
  return name == "localhost" || name.ends_with(".localhost") || read_address(name).is_loopback;
}

}  // namespace

std::string_view host_of_origin(std::string_view origin) {
  const std::size_t scheme = origin.find("://");
  return scheme == std::string_view::npos ? std::string_view() : origin.substr(scheme + 3);
}

bool is_loopback_origin(std::string_view origin) {
  return (origin.starts_with("http://") || origin.starts_with("https://")) &&
         is_loopback_name(name_of(host_of_origin(origin)));
}

bool is_origin(std::string_view text) {
  const std::string_view host = host_of_origin(text);
  return (text.starts_with("http://") || text.starts_with("https://")) && !name_of(host).empty() &&
         host.find_first_of("/@?# ") == std::string_view::npos;
}

HostRule::HostRule(std::string_view listens_on, std::string_view cors_origin)
    : serves_all_(cors_origin == "*"), page_name_(name_of(host_of_origin(cors_origin))) {
  const bool is_v6 = listens_on.find(':') != std::string_view::npos;
  own_name_ = name_of(is_v6 ? "[" + std::string(listens_on) + "]" : std::string(listens_on));
  serves_addresses_ = !is_loopback_name(own_name_);
}

bool HostRule::serves(std::string_view host) const {
  if (serves_all_ || host.empty()) return true;
  const std::string name = name_of(host);
  if (name.empty()) return false;
  return is_loopback_name(name) || name == own_name_ || name == page_name_ ||
         (serves_addresses_ && read_address(name).is_one);
}

}  // namespace dsmoe::serve
