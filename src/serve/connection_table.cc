// Places: for all, for each address, for /health.
#include "serve/connection_table.h"

#include <algorithm>

namespace dsmoe::serve {
namespace {

constexpr std::size_t kHealthPlaces = 8;

// One client of IPv6 has 2^64 addresses.
bool is_same_client(const net::ip::address& a, const net::ip::address& b) {
  if (!a.is_v6() || !b.is_v6() || a.to_v6().is_v4_mapped()) return a == b;
  const auto left = a.to_v6().to_bytes(), right = b.to_v6().to_bytes();
  return std::equal(left.begin(), left.begin() + 8, right.begin());
}

}  // namespace

template <class Fits>
std::size_t ConnectionTable::count(Fits&& fits) const {
  return static_cast<std::size_t>(std::count_if(
      connections_.begin(), connections_.end(),
      [&](const auto& connection) { return connection->is_open() && fits(*connection); }));
}

template <class Fits>
bool ConnectionTable::close_longest_waiting(Fits&& fits) {
  HttpConnection* longest = nullptr;
  for (const auto& connection : connections_) {
    const auto since = connection->waiting_since();
    if (!since || !fits(*connection)) continue;
    if (longest == nullptr || *since < *longest->waiting_since()) longest = connection.get();
  }
  if (longest == nullptr) return false;
  longest->close();
  return true;
}

// Behind a proxy on this machine, and in tests, all clients have one address.
std::size_t ConnectionTable::places_of(const net::ip::address& address) const {
  const HttpOptions& options = context_.options;
  if (options.max_connections_per_address > 0) return options.max_connections_per_address;
  if (address.is_loopback()) return options.max_connections;
  return std::max<std::size_t>(1, options.max_connections / 4);
}

HttpConnection::Place ConnectionTable::find_place(const net::ip::address& address) {
  using Place = HttpConnection::Place;
  const auto is_of_client = [&](const HttpConnection& connection) {
    return connection.place() == Place::any && is_same_client(connection.address(), address);
  };
  const auto is_any = [](const HttpConnection& connection) {
    return connection.place() == Place::any;
  };
  const std::size_t most = places_of(address);
  // Seldom more than a look at the list's length.
  if (connections_.size() >= most && count(is_of_client) >= most &&
      !close_longest_waiting(is_of_client)) {
    return Place::health;
  }
  if (connections_.size() >= context_.options.max_connections &&
      count(is_any) >= context_.options.max_connections && !close_longest_waiting(is_any)) {
    return Place::health;
  }
  return Place::any;
}

void ConnectionTable::take(tcp::socket socket) {
  ErrorCode gone;
  const tcp::endpoint remote = socket.remote_endpoint(gone);
  if (gone) return;
  const HttpConnection::Place place = find_place(remote.address());
  const auto is_health = [](const HttpConnection& connection) {
    return connection.place() == HttpConnection::Place::health;
  };
  if (place == HttpConnection::Place::health && count(is_health) >= kHealthPlaces &&
      !close_longest_waiting(is_health)) {
    return;
  }
  connections_.push_back(std::make_shared<HttpConnection>(std::move(socket), context_, place));
  connections_.back()->start();
}

bool ConnectionTable::make_room() noexcept {
  return close_longest_waiting([](const HttpConnection&) { return true; });
}

void ConnectionTable::sweep() noexcept {
  context_.wants_sweep = false;
  const auto now = Clock::now();
  for (const auto& connection : connections_) connection->sweep(now);
  connections_.remove_if([](const auto& connection) { return !connection->is_open(); });
}

void ConnectionTable::close_idle() noexcept {
  for (const auto& connection : connections_) connection->close_when_idle();
}

void ConnectionTable::close_all() noexcept {
  for (const auto& connection : connections_) connection->close();
}

bool ConnectionTable::is_answering_since(Clock::time_point then) const {
  return count([&](const HttpConnection& c) { return c.is_answering_since(then); }) > 0;
}

bool ConnectionTable::is_empty() const {
  return count([](const HttpConnection&) { return true; }) == 0;
}

}  // namespace dsmoe::serve
