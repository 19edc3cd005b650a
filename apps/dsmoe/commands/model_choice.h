// Which model a path means: a model folder, or a checkpoint of a training run.
#pragma once

#include <string>
#include <string_view>

namespace dsmoe::app {

struct ModelChoice {
  std::string folder;
  std::string why;  // for people, where the path was a run; else empty
};

// The one rule: a folder with config.json (or that file itself) is the model. Of a training run it
// is the best checkpoint where the run keeps one (--keep-best), else the newest one whose files are
// all there in full length. Anything else is thrown, with what was `expected`.
ModelChoice choose_model(const std::string& path, std::string_view expected);

// Where one file of a model is wanted, such as its tokenizer.json: a file, or a folder that holds
// `name`, is taken as it is; of a training run it is the checkpoint that choose_model takes.
ModelChoice choose_holder(const std::string& path, std::string_view name);

}  // namespace dsmoe::app
