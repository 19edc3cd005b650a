// Anonymous mappings for large blocks, aligned allocation for small ones.
#include "tensor/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace dsmoe::tensor {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

void* allocate_cpu(std::size_t bytes) {
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : 64;
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* data = std::aligned_alloc(alignment, rounded);
  if (data == nullptr) {
    fail(ErrorKind::resource, "out of memory: {:.1f} MiB could not be allocated",
         static_cast<double>(bytes) / (1 << 20));
  }

  if (alignment == kHugePage) madvise(data, rounded, MADV_HUGEPAGE);
  std::memset(data, 0, bytes);
  return data;
}

void release_cpu(void* data, std::size_t) { std::free(data); }

}  // namespace

Arena::Allocator Arena::host_allocator() { return {allocate_cpu, release_cpu, Device::cpu}; }

Arena::Arena(std::string label) : Arena(std::move(label), host_allocator()) {}

Arena::Arena(std::string label, Allocator allocator)
    : label_(std::move(label)), allocator_(allocator) {}

Arena::Arena(Arena&& other) noexcept
    : label_(std::move(other.label_)),
      allocator_(other.allocator_),
      entries_(std::move(other.entries_)),
      blocks_(std::exchange(other.blocks_, {})) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(label_, other.label_);
  std::swap(allocator_, other.allocator_);
  std::swap(entries_, other.entries_);
  std::swap(blocks_, other.blocks_);
  return *this;
}

Arena::~Arena() {
  for (const Block& block : blocks_) allocator_.release(block.data, block.bytes);
}

void* Arena::bytes(const std::string& name, std::size_t count) {
  // An empty tensor still gets an address of its own: data == nullptr means absent.
  void* data = allocator_.allocate(std::max<std::size_t>(count, 1));
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
