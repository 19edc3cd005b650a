// Memory kept back for the moment when there is none.
#pragma once

namespace dsmoe {

// From now on an allocation that fails gives the reserve back to the system and is tried again; the
// next one that fails throws. What unwinds then may still need a little: a destructor of Json
// allocates, and would end the program. One reserve for the process; 64 MiB that nobody touches.
void keep_memory_reserve();

// While one lives, only what unwinds takes the reserve in this thread: for what clients make grow.
class KeepReserve {
 public:
  KeepReserve();
  ~KeepReserve();
  KeepReserve(const KeepReserve&) = delete;
  KeepReserve& operator=(const KeepReserve&) = delete;
};

// Takes it again where it was given back; false: there is no memory for it yet.
bool restore_memory_reserve();

}  // namespace dsmoe
