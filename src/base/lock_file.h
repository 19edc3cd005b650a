// A file that is there to be locked with flock.
#pragma once

#include <filesystem>

namespace dsmoe {

// Opens it, and makes it where it is missing; the caller closes the descriptor. Throws Error(io),
// also on a symbolic link: what it points to would be locked, and perhaps written, in its place.
int open_lock_file(const std::filesystem::path& path);

}  // namespace dsmoe
