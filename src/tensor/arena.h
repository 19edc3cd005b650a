// Arena: owns all large memory, by name, so that a budget table can be printed before work starts.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace dsmoe::tensor {

// Memory is 64-byte aligned (2 MiB and huge pages asked for from 2 MiB up), zero-filled, and freed
// all at once. Real memory comes with the first touch. kernels/cuda passes its own allocator here.
class Arena {
 public:
  struct Allocator {
    void* (*allocate)(std::size_t bytes);  // zero-filled; throws Error(resource)
    void (*release)(void* data, std::size_t bytes);
    Device device;
  };
  struct Entry {
    std::string name;
    std::size_t bytes;
  };
  // Memory that already holds what will be asked for, in the order it will be asked for: a packed
  // image (store/packed_image.h). `owner` keeps it alive. Perhaps read-only.
  struct Filled {
    std::vector<std::span<const std::byte>> blocks;
    std::shared_ptr<const void> owner;
  };

  static Allocator host_allocator();

  // `label` names the arena in messages and tables: "weights", "kv cache", "workspace".
  explicit Arena(std::string label);
  Arena(std::string label, Allocator allocator);
  // Host memory that is handed out as it is. Throws Error(input) when the next block has not the
  // size that is asked for.
  Arena(std::string label, Filled filled);
  Arena(Arena&&) noexcept;
  Arena& operator=(Arena&&) noexcept;
  ~Arena();

  // An entry of the same name adds to it: "experts" appears once in the table however many tensors
  // it holds.
  TensorView tensor(const std::string& name, DType dtype, const Shape& shape);
  void* bytes(const std::string& name, std::size_t count);

  const std::string& label() const { return label_; }
  const std::vector<Entry>& entries() const { return entries_; }
  std::size_t total_bytes() const;
  // What was handed out, in that order.
  std::vector<std::span<const std::byte>> blocks() const;
  Device device() const { return allocator_.device; }

 private:
  struct Block {
    void* data;
    std::size_t bytes;
  };
  std::string label_;
  Allocator allocator_;
  void* next_filled(std::size_t count) const;

  std::vector<Entry> entries_;
  std::vector<Block> blocks_;
  Filled filled_;
};

// One line per entry, largest first, with a total.
std::string budget_table(std::span<const Arena* const> arenas);

}  // namespace dsmoe::tensor
