// What the build knows of itself.
#include "commands/version.h"

#include "commit.h"

namespace dsmoe::app {

std::string version() { return DSMOE_VERSION; }
std::string commit() { return DSMOE_COMMIT; }

}  // namespace dsmoe::app
