// Who may be connected, and who goes when there is no room.
#pragma once

#include <list>
#include <memory>

#include "serve/http_connection.h"

namespace dsmoe::serve {

// Owns the connections. Counts those that are open, never objects.
class ConnectionTable {
 public:
  explicit ConnectionTable(ConnectionContext& context) : context_(context) {}
  ~ConnectionTable() { close_all(); }

  // Finds a place: its own, or that of the one that waits longest. Otherwise one of the few from
  // which only /health is answered, or none.
  void take(tcp::socket socket);
  // Closes the connection that waits longest, if there is one.
  bool make_room() noexcept;
  void sweep() noexcept;
  void close_idle() noexcept;
  void close_all() noexcept;

  bool is_answering_since(Clock::time_point then) const;
  bool is_empty() const;

 private:
  using Connections = std::list<std::shared_ptr<HttpConnection>>;
  template <class Fits>
  bool close_longest_waiting(Fits&& fits);
  template <class Fits>
  std::size_t count(Fits&& fits) const;
  HttpConnection::Place find_place(const net::ip::address& address);
  std::size_t places_of(const net::ip::address& address) const;

  ConnectionContext& context_;
  Connections connections_;
};

}  // namespace dsmoe::serve
