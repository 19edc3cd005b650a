// Encodes demo documents one by one and adds up what they must cost.
#include "data/demo_tokens.h"

#include <string>
#include <vector>

namespace dsmoe::data {

DemoTokens encode_demo(const DemoCorpus& demo, DemoRange range, const Encoder& encoder) {
  std::vector<std::string> domains;
  for (const DemoDomain domain : kDemoDomains) domains.emplace_back(to_string(domain));
  DemoTokens out{.corpus = MemoryCorpus(encoder.vocab_size, domains)};
  for (uint64_t i = range.first; i < range.first + range.count; ++i) {
    DemoDocument document = demo.document(i);
    const int32_t source = static_cast<int32_t>(document.domain);
    TokenDocument tokens = encode_document({{{.text = std::move(document.text)}}}, encoder, source);
    out.nats += document.nats;
    out.num_targets += static_cast<int64_t>(tokens.tokens.size()) - 1;
    out.corpus.add(std::move(tokens));
  }
  return out;
}

}  // namespace dsmoe::data
