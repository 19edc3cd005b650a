// A list that only grows, read by a signal handler without a lock; records are used again.
#include "base/map_fault.h"

#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string_view>

namespace dsmoe {

// `begin` is set last and cleared first: whoever finds an address in a record sees the rest of it,
// which stays as long as that address is mapped.
class MapRecord {
 public:
  bool holds(const std::byte* address) const {
    const std::byte* start = begin.load(std::memory_order_acquire);
    return start != nullptr && address >= start && address - start < size.load();
  }

  std::atomic<const std::byte*> begin{nullptr};
  std::atomic<std::ptrdiff_t> size{0};
  std::string path;
  int descriptor = -1;
  MapRecord* next = nullptr;
};

namespace {

constexpr int kPatienceMilliseconds = 1000;

std::atomic<MapRecord*> first_record{nullptr};
static_assert(std::atomic<MapRecord*>::is_always_lock_free, "a signal handler reads it");
std::mutex writers;
struct sigaction previous_action {};

const MapRecord* find_record(const void* address) {
  for (const MapRecord* record = first_record.load(); record != nullptr; record = record->next) {
    if (record->holds(static_cast<const std::byte*>(address))) return record;
  }
  return nullptr;
}

// Text without memory from malloc, cut at its end rather than overrun.
class Message {
 public:
  void add(std::string_view part) {
    const std::size_t count = std::min(part.size(), text_.size() - size_);
    std::memcpy(text_.data() + size_, part.data(), count);
    size_ += count;
  }
  void add(uint64_t value) {
    std::array<char, 20> digits{};
    std::size_t begin = digits.size();
    do digits[--begin] = static_cast<char>('0' + value % 10);
    while ((value /= 10) != 0);
    add(std::string_view(digits.data() + begin, digits.size() - begin));
  }
  std::string_view text() const { return {text_.data(), size_}; }

 private:
  std::array<char, 4096 + 512> text_;  // of PATH_MAX and some words
  std::size_t size_ = 0;
};

// Also in the handler: calls nothing that is not async-signal-safe.
void describe(const MapRecord& record, const void* address, Message& message) {
  const auto expected = static_cast<uint64_t>(record.size.load());
  struct stat info {};
  const bool is_known = ::fstat(record.descriptor, &info) == 0;
  const auto found = is_known ? static_cast<uint64_t>(info.st_size) : expected;
  message.add(record.path);
  if (found < expected) {
    message.add(": was cut while in use: expected the ");
    message.add(expected);
    message.add(" bytes it had when it was opened, it has ");
    message.add(found);
  } else {
    message.add(": its byte ");
    message.add(
        static_cast<uint64_t>(static_cast<const std::byte*>(address) - record.begin.load()));
    message.add(" cannot be read from the disk");
  }
}

void on_bus_error(int number, siginfo_t* info, void*) {
  static std::atomic<bool> is_told{false};
  const MapRecord* record = info->si_code > 0 ? find_record(info->si_addr) : nullptr;
  if (record == nullptr) {
    // A fault comes again as soon as this returns, and finds the handler that was there before.
    ::sigaction(number, &previous_action, nullptr);
    if (info->si_code <= 0) ::raise(number);
    return;
  }
  while (is_told.exchange(true)) ::pause();  // another thread is telling it
  Message message;
  message.add("dsmoe: ");
  describe(*record, info->si_addr, message);
  message.add("\n");
  // A reader that has stopped must not keep the process.
  pollfd output{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  if (::poll(&output, 1, kPatienceMilliseconds) != 1 ||
      ::write(STDERR_FILENO, message.text().data(), message.text().size()) < 0) {
    ::_exit(1);
  }
  ::_exit(1);
}

}  // namespace

MapRecord* record_map(const std::filesystem::path& path, int descriptor,
                      std::span<const std::byte> bytes) {
  const std::lock_guard lock(writers);
  MapRecord* record = first_record.load();
  while (record != nullptr && record->begin.load() != nullptr) record = record->next;
  const bool is_new = record == nullptr;
  if (is_new) record = new MapRecord;  // never freed: a handler may be reading the list
  record->path = path.string();
  record->descriptor = descriptor;
  record->size.store(static_cast<std::ptrdiff_t>(bytes.size()));
  record->begin.store(bytes.data(), std::memory_order_release);
  if (is_new) {
    record->next = first_record.load();
    first_record.store(record);
  }
  return record;
}

void forget_map(MapRecord* record) noexcept {
  if (record != nullptr) record->begin.store(nullptr);
}

std::string describe_map_fault(const void* address) {
  const MapRecord* record = find_record(address);
  if (record == nullptr) return {};
  Message message;
  describe(*record, address, message);
  return std::string(message.text());
}

void end_on_map_faults() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(SIGBUS, &action, &previous_action);
  });
}

}  // namespace dsmoe
