// Collects documents until each label has its share.
#include "report/labelled_text.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "data/data_files.h"
#include "data/demo_tokens.h"

namespace dsmoe::report {
namespace {

// The embedded corpus of `demo` and `compare`; its documents differ between seeds, not its
// language.
constexpr uint64_t kCorpusSeed = 1;

class Collector {
 public:
  Collector(LabelledText& text, const TextLimits& limits)
      : text_(text),
        context_(static_cast<std::size_t>(limits.context)),
        share_(std::max<int64_t>(
            2, limits.max_tokens / std::max<int64_t>(1, static_cast<int64_t>(text.labels.size())))),
        taken_(text.labels.size(), 0) {
    if (limits.context < 2) {
      fail(ErrorKind::input, "a context of {} leaves nothing to predict; at least 2 are needed",
           limits.context);
    }
  }

  bool is_full(int32_t label) const { return taken_[static_cast<std::size_t>(label)] >= share_; }
  bool all_full() const {
    return std::all_of(taken_.begin(), taken_.end(), [&](int64_t n) { return n >= share_; });
  }

  void add(std::span<const int32_t> tokens, int32_t label) {
    int64_t& taken = taken_[static_cast<std::size_t>(label)];
    while (tokens.size() >= 2 && taken < share_) {
      const auto piece = tokens.first(
          std::min({tokens.size(), context_, static_cast<std::size_t>(share_ - taken + 1)}));
      if (piece.size() < 2) return;
      text_.documents.push_back({.tokens = {piece.begin(), piece.end()}, .label = label});
      taken += static_cast<int64_t>(piece.size());
      tokens = tokens.subspan(piece.size());
    }
  }

 private:
  LabelledText& text_;
  std::size_t context_;
  int64_t share_;
  std::vector<int64_t> taken_;
};

void require_some(const LabelledText& text) {
  if (text.documents.empty()) {
    fail(ErrorKind::input, "{}: no document of at least two tokens", text.title);
  }
}

}  // namespace

int64_t LabelledText::num_tokens() const {
  int64_t sum = 0;
  for (const Document& document : documents) sum += static_cast<int64_t>(document.tokens.size());
  return sum;
}

LabelledText embedded_text(const data::Encoder& encoder, const TextLimits& limits) {
  LabelledText text{.title = "embedded corpus"};
  for (const data::DemoDomain domain : data::kDemoDomains) {
    text.labels.emplace_back(data::to_string(domain));
  }
  const data::DemoCorpus corpus(kCorpusSeed);
  Collector collector(text, limits);
  for (uint64_t i = 0; !collector.all_full(); ++i) {
    const data::DemoDocument document = corpus.document(data::kDemoValidation + i);
    const auto label = static_cast<int32_t>(document.domain);
    const std::vector<int32_t> tokens =
        data::encode_document({.parts = {{.text = document.text}}}, encoder, 0).tokens;
    // Else no label would ever have its share.
    if (tokens.size() < 2) {
      fail(ErrorKind::input, "the tokenizer makes no tokens of the embedded corpus");
    }
    collector.add(tokens, label);
  }
  return text;
}

LabelledText text_of_files(const std::vector<std::string>& words, const data::Encoder& encoder,
                           const TextLimits& limits) {
  const std::vector<data::NamedSource> sources = data::find_unweighted(words);
  LabelledText text;
  for (const data::NamedSource& source : sources) {
    text.labels.push_back(source.name.empty() ? source.files.front().filename().string()
                                              : source.name);
    text.title += (text.title.empty() ? "" : ", ") + text.labels.back();
  }
  data::ReaderOptions reader;
  reader.render_chat = [](const data::Chat& chat) {
    std::vector<data::DocumentPart> parts;
    for (const OrderedJson& message : chat.messages) {
      parts.push_back({.text = data::text_of(message)});
    }
    return parts;
  };
  Collector collector(text, limits);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const auto label = static_cast<int32_t>(i);
    for (const std::filesystem::path& file : sources[i].files) {
      if (collector.is_full(label)) break;
      const auto documents = data::open_documents(file, data::InputFormat::automatic, reader);
      for (data::Document document; !collector.is_full(label) && documents->next(document);) {
        collector.add(data::encode_document(document, encoder, 0).tokens, label);
      }
    }
  }
  require_some(text);
  return text;
}

LabelledText text_of_corpus(const data::TokenCorpus& corpus, const TextLimits& limits) {
  LabelledText text{.title = "the run's data", .labels = corpus.sources()};
  Collector collector(text, limits);
  for (int64_t d = 0; d < corpus.num_documents() && !collector.all_full(); ++d) {
    const int32_t source = corpus.source(d);
    if (collector.is_full(source)) continue;
    // More than its share is never read: a document may be a whole library.
    std::vector<int32_t> tokens(
        static_cast<std::size_t>(std::min(corpus.length(d), limits.max_tokens)));
    corpus.copy_tokens(d, 0, tokens);
    collector.add(tokens, source);
  }
  require_some(text);
  return text;
}

}  // namespace dsmoe::report
