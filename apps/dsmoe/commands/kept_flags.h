// The flags that run.json keeps, and the same flags given again when a run goes on.
#pragma once

#include <string>
#include <vector>

#include "commands/command_line.h"
#include "train/run_record.h"

namespace dsmoe::app {

// As JSON: "--batch" -> "4", a list of several values, true for a switch. Paths are absolute, so
// that a run can go on from another folder. What belongs to one process only is left out.
OrderedJson flags_to_keep(const std::vector<Given::Flag>& given);

struct MergedFlags {
  std::vector<Given::Flag> flags;  // what was given, else what was kept
  std::vector<std::string>
      changed;  // what was given otherwise than kept: "--steps 60 instead of 30"
};
// Throws Error(input) where `kept` holds what flags_to_keep() does not write; `what` names the
// file.
MergedFlags merge_flags(const OrderedJson& kept, const std::vector<Given::Flag>& given,
                        const std::string& what);

}  // namespace dsmoe::app
