// The reference table.
#include <cstring>

#include "base/thread_pool.h"
#include "kernels/ref/ref.h"

namespace dsmoe::kernels {
namespace {

void copy(const Context&, const void* source, void* target, std::size_t bytes) {
  std::memcpy(target, source, bytes);
}

void fill_zero(const Context& context, void* data, std::size_t bytes) {
  constexpr int64_t kGrain = 1 << 18;
  parallel_for(*context.pool, static_cast<int64_t>(bytes), kGrain, [&](int64_t begin, int64_t end) {
    std::memset(static_cast<char*>(data) + begin, 0, static_cast<std::size_t>(end - begin));
  });
}

}  // namespace

const KernelTable& ref_table() {
  static const KernelTable table{.name = "ref",
                                 .device = Device::cpu,
                                 .weight_layout = WeightLayout::panels,
                                 .allocator = tensor::Arena::host_allocator(),
                                 .memory = {.upload = copy, .download = copy, .zero = fill_zero},
#define DSMOE_ENTRY(name, Arguments) .name = ref::name,
                                 DSMOE_OPS(DSMOE_ENTRY) DSMOE_OPS_OF_CPU(DSMOE_ENTRY)
#undef DSMOE_ENTRY
  };
  return table;
}

}  // namespace dsmoe::kernels
