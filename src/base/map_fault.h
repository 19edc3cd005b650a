// Which file is mapped where, and a last word when the system cannot give one of its pages.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace dsmoe {

class MapRecord;  // one mapped file

// Threads may call both at any time. `forget` comes before munmap; nullptr is ignored.
MapRecord* record_map(const std::filesystem::path& path, int descriptor,
                      std::span<const std::byte> bytes);
void forget_map(MapRecord* record) noexcept;

// What is wrong with the recorded file that holds `address`: how long it is and how long it was.
// Empty when no recorded file lies there.
std::string describe_map_fault(const void* address);

// A file that another process cuts while it is mapped takes pages away: who touches them gets
// SIGBUS, in any thread. After this call such a fault in a recorded file writes "dsmoe: " and the
// description to stderr and ends the process with exit code 1. Any other SIGBUS goes where it went
// before. For main(): a signal's handler belongs to the program, so no library function calls it.
void end_on_map_faults();

}  // namespace dsmoe
