// Freed memory goes back to the system.
#pragma once

namespace dsmoe {

// For programs that run for good. The C library takes large blocks from the system one by one, but
// once it has seen one freed it keeps blocks of that size, up to 32 MiB, in the arenas of threads,
// where any small block behind them holds them for ever. From now on blocks of 128 KiB and more go
// back when they are freed, and of an arena's free end all but 1 MiB.
void give_freed_memory_back();

}  // namespace dsmoe
