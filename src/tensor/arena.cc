// Anonymous mappings for large blocks, aligned allocation for small ones.
#include "tensor/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace dsmoe::tensor {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kAlignment = 64;

[[noreturn]] void refuse(std::size_t bytes) {
  fail(ErrorKind::resource, "out of memory: {:.1f} MiB could not be allocated",
       static_cast<double>(bytes) / (1 << 20));
}

std::size_t mapped_bytes(std::size_t bytes) {
  return (bytes + kHugePage - 1) / kHugePage * kHugePage;
}

// Mapped memory is zero without being written, so that the threads that fill it also pay for its
// first touch. One huge page more is mapped and the ends cut off, to begin at a huge page.
void* map_zeros(std::size_t bytes) {
  const std::size_t rounded = mapped_bytes(bytes);
  void* mapping = rounded < bytes ? MAP_FAILED
                                  : ::mmap(nullptr, rounded + kHugePage, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) refuse(bytes);
  auto* begin = static_cast<std::byte*>(mapping);
  const std::size_t before = -reinterpret_cast<std::uintptr_t>(begin) % kHugePage;
  if (before > 0) ::munmap(begin, before);
  ::munmap(begin + before + rounded, kHugePage - before);
  ::madvise(begin + before, rounded, MADV_HUGEPAGE);
  return begin + before;
}

void* allocate_cpu(std::size_t bytes) {
  if (bytes >= kHugePage) return map_zeros(bytes);
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* data = std::aligned_alloc(kAlignment, rounded);
  if (data == nullptr) refuse(bytes);
  std::memset(data, 0, bytes);
  return data;
}

void release_cpu(void* data, std::size_t bytes) {
  if (bytes >= kHugePage) {
    ::munmap(data, mapped_bytes(bytes));
  } else {
    std::free(data);
  }
}

}  // namespace

Arena::Allocator Arena::host_allocator() { return {allocate_cpu, release_cpu, Device::cpu}; }

Arena::Arena(std::string label) : Arena(std::move(label), host_allocator()) {}

Arena::Arena(std::string label, Allocator allocator)
    : label_(std::move(label)), allocator_(allocator) {}

Arena::Arena(std::string label, Filled filled)
    : label_(std::move(label)),
      allocator_{nullptr, [](void*, std::size_t) {}, Device::cpu},
      filled_(std::move(filled)) {}

Arena::Arena(Arena&& other) noexcept
    : label_(std::move(other.label_)),
      allocator_(other.allocator_),
      entries_(std::move(other.entries_)),
      blocks_(std::exchange(other.blocks_, {})),
      filled_(std::move(other.filled_)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(label_, other.label_);
  std::swap(allocator_, other.allocator_);
  std::swap(entries_, other.entries_);
  std::swap(blocks_, other.blocks_);
  std::swap(filled_, other.filled_);
  return *this;
}

Arena::~Arena() {
  for (const Block& block : blocks_) allocator_.release(block.data, block.bytes);
}

// Blocks are only read: who asks for them knows that they are filled.
void* Arena::next_filled(std::size_t count) const {
  const std::size_t idx = blocks_.size();
  const std::size_t found = idx < filled_.blocks.size() ? filled_.blocks[idx].size() : 0;
  if (idx >= filled_.blocks.size() || found != count) {
    fail(ErrorKind::input, "block {} of {} has {} bytes, {} were expected", idx,
         filled_.blocks.size(), found, count);
  }
  return const_cast<std::byte*>(filled_.blocks[idx].data());
}

void* Arena::bytes(const std::string& name, std::size_t count) {
  // An empty tensor still gets an address of its own: data == nullptr means absent.
  void* data = allocator_.allocate == nullptr
                   ? next_filled(count)
                   : allocator_.allocate(std::max<std::size_t>(count, 1));
  blocks_.push_back({data, count});
  const auto entry = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& e) { return e.name == name; });
  if (entry == entries_.end()) {
    entries_.push_back({name, count});
  } else {
    entry->bytes += count;
  }
  return data;
}

TensorView Arena::tensor(const std::string& name, DType dtype, const Shape& shape) {
  TensorView view{nullptr, dtype, shape, allocator_.device};
  view.data = bytes(name, view.num_bytes());
  return view;
}

std::size_t Arena::total_bytes() const {
  std::size_t total = 0;
  for (const Entry& entry : entries_) total += entry.bytes;
  return total;
}

std::vector<std::span<const std::byte>> Arena::blocks() const {
  std::vector<std::span<const std::byte>> blocks;
  for (const Block& block : blocks_) {
    blocks.emplace_back(static_cast<const std::byte*>(block.data), block.bytes);
  }
  return blocks;
}

std::string budget_table(std::span<const Arena* const> arenas) {
  std::string text;
  std::size_t total = 0;
  const auto line = [&](const std::string& name, std::size_t bytes) {
    text += fmt::format("  {:<32} {:>12.1f} MiB\n", name, static_cast<double>(bytes) / (1 << 20));
  };
  for (const Arena* arena : arenas) {
    std::vector<Arena::Entry> sorted = arena->entries();
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
    for (const Arena::Entry& entry : sorted) line(arena->label() + ": " + entry.name, entry.bytes);
    total += arena->total_bytes();
  }
  line("total", total);
  return text;
}

}  // namespace dsmoe::tensor
