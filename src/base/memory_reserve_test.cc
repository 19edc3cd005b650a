#include "base/memory_reserve.h"

#include <gtest/gtest.h>

#include <new>

namespace dsmoe {
namespace {

TEST(MemoryReserve, IsLentOnceAndTakenAgain) {
  const std::new_handler before = std::get_new_handler();
  keep_memory_reserve();
  const std::new_handler on_failure = std::get_new_handler();
  ASSERT_NE(on_failure, nullptr);
  on_failure();  // the allocation is tried again
  EXPECT_THROW(on_failure(), std::bad_alloc);
  EXPECT_TRUE(restore_memory_reserve());
  on_failure();
  EXPECT_TRUE(restore_memory_reserve());
  {
    const KeepReserve keep;
    EXPECT_THROW(on_failure(), std::bad_alloc);
  }
  struct AsksWhenItEnds {
    ~AsksWhenItEnds() { ask(); }
    std::new_handler ask;
  };
  try {
    const KeepReserve keep;
    const AsksWhenItEnds unwound{on_failure};
    throw std::bad_alloc();
  } catch (const std::bad_alloc&) {
  }
  EXPECT_THROW(on_failure(), std::bad_alloc);  // it was taken
  EXPECT_TRUE(restore_memory_reserve());
  on_failure();
  EXPECT_TRUE(restore_memory_reserve());
  std::set_new_handler(before);
}

}  // namespace
}  // namespace dsmoe
