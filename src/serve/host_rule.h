// Which names a server without keys answers to.
#pragma once

#include <string>
#include <string_view>

namespace dsmoe::serve {

// Whoever owns a name can let it mean any address, also this machine's. A browser then takes the
// server for a part of that owner's page, which reads every answer. So without keys a name counts
// only if nobody else can own it, or if the operator gave it.
class HostRule {
 public:
  // `listens_on` is --host, `cors_origin` "*", one origin or empty.
  HostRule(std::string_view listens_on, std::string_view cors_origin);

  // `host` is the value of a Host header: a name or address, perhaps with a port. Loopback names,
  // `listens_on` and the host of `cors_origin` are served; with "*" everything. On an address that
  // others can reach every address in figures is: no page can own one. No browser leaves it out.
  bool serves(std::string_view host) const;

 private:
  bool serves_all_;
  bool serves_addresses_;
  std::string own_name_, page_name_;
};

// True for "http://localhost:3000", "https://[::1]": pages of this machine.
bool is_loopback_origin(std::string_view origin);

// "http://HOST" or "https://HOST", perhaps with a port: what a browser sends.
bool is_origin(std::string_view text);

// What follows the "://" of an origin; empty when nothing does.
std::string_view host_of_origin(std::string_view origin);

}  // namespace dsmoe::serve
