// What must be the same on all ranks before they compute anything together.
#pragma once

#include <span>
#include <string>
#include <utility>

#include "comm/group.h"

namespace dsmoe::train {

// (what it is called, what this rank has). Error(usage) names the first rank that has something
// else than the first rank, and what.
using Agreed = std::pair<std::string, std::string>;
void expect_agreement(comm::Group& group, std::span<const Agreed> own);

}  // namespace dsmoe::train
