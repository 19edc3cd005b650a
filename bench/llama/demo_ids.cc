// Held-out documents of the built-in corpus as token ids of a model, one JSON line each, as `dsmoe
// eval --pairs` reads them: demo_ids MODEL DOCUMENTS
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <cstdlib>

#include "commands/text_side.h"
#include "data/demo_corpus.h"
#include "infer/load_model.h"
#include "infer/measure/evaluate.h"

int main(int argc, char** argv) {
  using namespace dsmoe;
  try {
    if (argc < 3) fail(ErrorKind::usage, "usage: demo_ids MODEL DOCUMENTS");
    const auto prefix = infer::prefix_token(model::read_config(argv[1]));
    if (!prefix) fail(ErrorKind::input, "{}: no token stands for the start of a text", argv[1]);
    const app::TextSide text(argv[1]);
    const data::DemoCorpus corpus(1);
    for (uint64_t i = 0; i < std::strtoull(argv[2], nullptr, 10); ++i) {
      const std::string document = corpus.document(data::kDemoValidation + i).text;
      const auto ids = text.encode(document, app::AroundText::nothing);
      if (ids.empty()) continue;
      fmt::print("{{\"context_ids\":[{}],\"continuation_ids\":[{}]}}\n", *prefix,
                 fmt::join(ids, ","));
    }
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "demo_ids: {}\n", error.what());
    return 1;
  }
}
