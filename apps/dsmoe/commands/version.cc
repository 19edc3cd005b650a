// The version, commit and engine of this build.
#include "commands/version.h"

#include "commit.h"

namespace dsmoe::app {

std::string version() { return DSMOE_VERSION; }
std::string commit() { return DSMOE_COMMIT; }

}  // namespace dsmoe::app
