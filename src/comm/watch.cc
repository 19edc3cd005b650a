// One thread per process. Messages have one size; whoever sends anything else is cut off.
#include "comm/watch.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"

namespace dsmoe::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kMostAddresses = 16, kMostStrangers = 32;

template <std::size_t kSize>
void put_text(char (&target)[kSize], std::string_view text) {
  std::memset(target, 0, kSize);
  std::memcpy(target, text.data(), std::min(text.size(), kSize - 1));
}

enum class Kind : uint32_t { hello = 0x64736d31, alive, failed, goodbye };

struct Message {
  Kind kind = Kind::alive;
  int32_t rank = 0;
  char text[504] = {};  // alive: what it does; failed: why; hello: the token
};

// How to reach rank 0.
struct Invitation {
  std::array<char, 32> token{};
  std::array<uint32_t, kMostAddresses> addresses{};  // IPv4, network order
  uint32_t num_addresses = 0;
  uint16_t port = 0;  // network order
};

class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Socket() { close(); }
  void close() {
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = -1;
  }
  int get() const { return descriptor_; }
  explicit operator bool() const { return descriptor_ >= 0; }

 private:
  int descriptor_ = -1;
};

Socket listen_anywhere() {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) fail_errno("cannot make a control socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0) {
    fail_errno("cannot listen for the other ranks");
  }
  return socket;
}

Invitation invitation_to(const Socket& listening) {
  Invitation invitation;
  if (::getrandom(invitation.token.data(), invitation.token.size(), 0) !=
      static_cast<ssize_t>(invitation.token.size())) {
    fail_errno("no random numbers for the token of the control connection");
  }
  sockaddr_in own{};
  socklen_t size = sizeof own;
  if (::getsockname(listening.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0)
    fail_errno("cannot ask for the control port");
  invitation.port = own.sin_port;
  const auto add = [&](uint32_t address) {
    if (invitation.num_addresses < kMostAddresses)
      invitation.addresses[invitation.num_addresses++] = address;
  };
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) == 0) {
    for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
      if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
      const auto address = reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr.s_addr;
      if (address != htonl(INADDR_LOOPBACK)) add(address);
    }
    ::freeifaddrs(list);
  }
  if (invitation.num_addresses == 0) add(htonl(INADDR_LOOPBACK));  // one host alone
  return invitation;
}

std::string own_host() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "unknown host";
}

// Whole messages only, without waiting. False: the other side is gone.
bool send_message(const Socket& to, const Message& message) {
  const auto* bytes = reinterpret_cast<const char*>(&message);
  std::size_t sent = 0;
  while (sent < sizeof message) {
    const ssize_t count =
        ::send(to.get(), bytes + sent, sizeof message - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      // Who takes nothing for so long that the system's buffer is full will be silent, too. Half a
      // message may not stay: wait a little.
      if (sent == 0) return true;
      pollfd poll_one{.fd = to.get(), .events = POLLOUT, .revents = 0};
      if (::poll(&poll_one, 1, 100) <= 0) return false;
      continue;
    }
    if (count <= 0) return false;
    sent += static_cast<std::size_t>(count);
  }
  return true;
}

// A connection and what has come of the next message.
struct Peer {
  Socket socket;
  int rank = -1;  // below 0: has not said hello
  Clock::time_point heard = Clock::now();
  std::string doing = "its start";
  bool said_goodbye = false;
  std::vector<char> buffer;

  // Calls f(message) for every whole one; false: the connection is closed.
  template <class F>
  bool receive(F&& f) {
    char bytes[4 * sizeof(Message)];
    for (;;) {
      const ssize_t count = ::recv(socket.get(), bytes, sizeof bytes, MSG_DONTWAIT);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
      if (count == 0) return false;
      buffer.insert(buffer.end(), bytes, bytes + count);
      while (buffer.size() >= sizeof(Message)) {
        Message message;
        std::memcpy(&message, buffer.data(), sizeof message);
        buffer.erase(buffer.begin(), buffer.begin() + sizeof message);
        message.text[sizeof message.text - 1] = 0;
        if (!f(message)) return false;
      }
    }
  }
};

bool is_token(const Message& hello, const std::array<char, 32>& token) {
  unsigned difference = 0;  // of all bytes: how long it takes tells nothing
  for (std::size_t i = 0; i < token.size(); ++i)
    difference |= static_cast<unsigned char>(hello.text[i] ^ token[i]);
  return difference == 0;
}

}  // namespace

struct Watch::Impl {
  Impl(Group& group, const WatchTimes& t)
      : rank(group.rank()), size(group.size()), times(t), own_name(own_host()) {
    struct Name {
      char text[256] = {};
    } name;
    put_text(name.text, own_name);
    for (const Name& host : group.gather("names of hosts", name)) hosts.emplace_back(host.text);
    if (rank == 0) {
      listening = listen_anywhere();
      invitation = invitation_to(listening);
    }
    group.broadcast("control connections", 0, std::as_writable_bytes(std::span(&invitation, 1)));
    if (rank != 0) connect();
    thread = std::thread([this] { run(); });
    try {
      wait_for_hellos(group);
    } catch (...) {
      stop();
      throw;
    }
  }

  std::string place_of(int of_rank) const {
    return fmt::format("rank {} on {}", of_rank, hosts[static_cast<std::size_t>(of_rank)]);
  }

  // To the first of rank 0's addresses that answers.
  void connect() {
    std::string last = "no address";
    // On rank 0's own host loopback is the surest.
    std::vector<uint32_t> addresses(invitation.addresses.begin(),
                                    invitation.addresses.begin() + invitation.num_addresses);
    if (hosts[0] == own_name) addresses.insert(addresses.begin(), htonl(INADDR_LOOPBACK));
    for (const uint32_t address : addresses) {
      sockaddr_in to{};
      to.sin_family = AF_INET;
      to.sin_addr.s_addr = address;
      to.sin_port = invitation.port;
      Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (!socket) fail_errno("cannot make a control socket");
      int error = 0;
      socklen_t length = sizeof error;
      if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) {
        error = errno;
        pollfd one{.fd = socket.get(), .events = POLLOUT, .revents = 0};
        if (error == EINPROGRESS && ::poll(&one, 1, 3'000) > 0)
          ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
      }
      char text[INET_ADDRSTRLEN] = {};
      ::inet_ntop(AF_INET, &to.sin_addr, text, sizeof text);
      if (error != 0) {
        last = fmt::format("{}: {}", text, std::strerror(error));
        continue;
      }
      Message hello{.kind = Kind::hello, .rank = rank};
      std::memcpy(hello.text, invitation.token.data(), invitation.token.size());
      const int one = 1;
      ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
      if (!send_message(socket, hello)) continue;
      Peer& first = peers.emplace_back();
      first.socket = std::move(socket);
      first.rank = 0;
      return;
    }
    dsmoe::fail(ErrorKind::io, "{} cannot reach {} at port {} ({}); ranks need TCP between hosts",
                place_of(rank), place_of(0), ntohs(invitation.port), last);
  }

  // Rank 0 has heard all before anybody goes on.
  void wait_for_hellos(Group& group) {
    const auto end = Clock::now() + std::max(times.silence, milliseconds(10'000));
    while (rank == 0 && num_known < size - 1 && Clock::now() < end)
      std::this_thread::sleep_for(milliseconds(2));
    if (rank == 0 && num_known < size - 1) {
      dsmoe::fail(ErrorKind::io, "{} of {} other ranks have said who they are", num_known.load(),
                  size - 1);
    }
    group.barrier("all ranks are watched");
  }

  void stop() {
    ending = true;
    if (thread.joinable()) thread.join();
  }

  void set_failure(std::string text) {
    const std::lock_guard lock(mutex);
    if (failed) return;
    failure = std::move(text);
    failed_at = Clock::now();
    failed = true;
  }

  void tell_all(Kind kind, std::string_view text) {
    Message message{.kind = kind, .rank = rank};
    put_text(message.text, text);
    for (Peer& peer : peers)
      if (peer.rank >= 0) send_message(peer.socket, message);
  }

  // Of a peer: what came. False cuts it off.
  bool take(Peer& peer, const Message& message) {
    peer.heard = Clock::now();
    if (peer.rank < 0) {
      const bool is_new = std::ranges::none_of(
          peers, [&](const Peer& other) { return other.rank == message.rank; });
      if (message.kind != Kind::hello || !is_token(message, invitation.token) || message.rank < 1 ||
          message.rank >= size || !is_new) {
        return false;
      }
      peer.rank = message.rank;
      ++num_known;
      return true;
    }
    switch (message.kind) {
      case Kind::alive:
        peer.doing = message.text;
        return true;
      case Kind::failed:
        set_failure(message.text);
        return true;
      case Kind::goodbye:
        peer.said_goodbye = true;
        return true;
      case Kind::hello:
        break;
    }
    return false;
  }

  void accept_all() {
    for (;;) {
      const int descriptor =
          ::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (descriptor < 0) return;
      Peer peer;
      peer.socket = Socket(descriptor);
      const auto strangers =
          std::ranges::count_if(peers, [](const Peer& other) { return other.rank < 0; });
      if (static_cast<std::size_t>(strangers) < kMostStrangers) peers.push_back(std::move(peer));
    }
  }

  // Who is gone or silent.
  void look_at_peers() {
    for (std::size_t i = 0; i < peers.size();) {
      Peer& peer = peers[i];
      const bool is_open =
          peer.receive([&](const Message& message) { return take(peer, message); });
      const auto quiet = Clock::now() - peer.heard;
      const bool is_silent = quiet > times.silence;
      const bool is_stranger = peer.rank < 0;
      if (!is_stranger && !peer.said_goodbye && (!is_open || is_silent)) {
        const std::string how =
            is_open ? fmt::format("has not been heard of for {:.0f} s: it is frozen or cut off",
                                  std::chrono::duration<double>(quiet).count())
                    : "has ended without a word: it was killed or has crashed";
        set_failure(
            fmt::format("{} {}; it was last in \"{}\"", place_of(peer.rank), how, peer.doing));
      }
      if (!is_open || (is_stranger && is_silent)) {
        peers.erase(peers.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
  }

  void run() {
    auto next_beat = Clock::now();
    bool was_told = false;
    while (!ending) {
      std::vector<pollfd> list;
      if (listening) list.push_back({.fd = listening.get(), .events = POLLIN, .revents = 0});
      for (const Peer& peer : peers)
        list.push_back({.fd = peer.socket.get(), .events = POLLIN, .revents = 0});
      ::poll(list.data(), list.size(), 20);
      if (listening) accept_all();
      look_at_peers();
      if (Clock::now() >= next_beat) {
        std::string what;
        {
          const std::lock_guard lock(mutex);
          what = current;
        }
        tell_all(Kind::alive, what);
        next_beat = Clock::now() + times.beat;
      }
      if (!failed) continue;
      if (!was_told) tell_all(Kind::failed, text_of_failure());
      was_told = true;
      if (Clock::now() - failed_at > times.grace) {
        write_message(fmt::format("dsmoe: {} ends: {}\n", place_of(rank), text_of_failure()));
        std::_Exit(1);
      }
    }
    if (failed && !was_told) tell_all(Kind::failed, text_of_failure());
    tell_all(Kind::goodbye, "");
  }

  std::string text_of_failure() const {
    const std::lock_guard lock(mutex);
    return failure;
  }

  int rank, size;
  WatchTimes times;
  std::string own_name;
  std::vector<std::string> hosts;  // by rank
  Socket listening;                // of rank 0
  Invitation invitation;
  std::vector<Peer> peers;  // of rank 0: all others; else rank 0
  std::atomic<int> num_known{0};
  std::atomic<bool> ending{false}, failed{false};
  mutable std::mutex mutex;
  std::string current = "its start", failure;
  Clock::time_point failed_at;
  std::thread thread;  // the last: it uses all others
};

Watch::Watch(Group& group, const WatchTimes& times) : impl_(std::make_unique<Impl>(group, times)) {}

Watch::~Watch() { impl_->stop(); }

void Watch::doing(std::string_view what) {
  const std::lock_guard lock(impl_->mutex);
  impl_->current = what;
}

void Watch::fail(std::string_view why) {
  impl_->set_failure(fmt::format("{} failed: {}", impl_->place_of(impl_->rank), why));
}

bool Watch::has_failure() const { return impl_->failed; }

std::string Watch::failure() const { return impl_->text_of_failure(); }

}  // namespace dsmoe::comm
