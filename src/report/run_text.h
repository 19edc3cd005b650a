// The text that a training run has read, as its checkpoint and its token cache tell.
#pragma once

#include <filesystem>
#include <optional>

#include "report/labelled_text.h"

namespace dsmoe::report {

struct RunText {
  LabelledText text;
  bool is_embedded = false;  // the corpus of `demo` and `compare`
};

// Nothing where the checkpoint is of no run, or where the run's tokens are gone. `checkpoint` is a
// folder of `run`.
std::optional<RunText> text_of_run(const std::filesystem::path& run,
                                   const std::filesystem::path& checkpoint,
                                   const data::Encoder& encoder, const TextLimits& limits);

}  // namespace dsmoe::report
