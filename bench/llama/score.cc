// Perplexity by llama.cpp of the lines of token ids that demo_ids writes, each line a text of its
// own: score MODEL.gguf IDS [THREADS] Built against llama.cpp by quality.sh; not a part of the
// program.
#include <llama.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace {

using Ids = std::vector<llama_token>;

// The numbers of a line, whatever stands between them.
Ids parse_ids(const std::string& line) {
  Ids ids;
  bool inside = false;
  for (const char c : line) {
    const bool digit = c >= '0' && c <= '9';
    if (digit && !inside) ids.push_back(0);
    if (digit) ids.back() = ids.back() * 10 + (c - '0');
    inside = digit;
  }
  return ids;
}

// Minus the natural logarithm of the target's probability.
double nats_of(const float* logits, int size, llama_token target) {
  const float largest = *std::max_element(logits, logits + size);
  double sum = 0;
  for (int i = 0; i < size; ++i) sum += std::exp(static_cast<double>(logits[i]) - largest);
  return std::log(sum) - (static_cast<double>(logits[target]) - largest);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return std::fprintf(stderr, "usage: score MODEL.gguf IDS [THREADS]\n"), 2;
  std::vector<Ids> documents;
  std::ifstream file(argv[2]);
  std::size_t longest = 2;
  for (std::string line; std::getline(file, line);) {
    documents.push_back(parse_ids(line));
    longest = std::max(longest, documents.back().size());
  }
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (model == nullptr) return std::fprintf(stderr, "cannot load %s\n", argv[1]), 1;
  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = params.n_ubatch = static_cast<uint32_t>(longest);
  params.n_threads = params.n_threads_batch = argc > 3 ? std::atoi(argv[3]) : 1;
  params.type_k = params.type_v = GGML_TYPE_F32;  // what is compared is the weights
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  llama_context* context = llama_init_from_model(model, params);
  if (context == nullptr) return std::fprintf(stderr, "cannot make a context\n"), 1;
  const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));

  llama_batch batch = llama_batch_init(static_cast<int>(longest), 0, 1);
  double nats = 0;
  std::size_t scored = 0;
  for (const Ids& ids : documents) {
    batch.n_tokens = static_cast<int>(ids.size()) - 1;
    if (batch.n_tokens < 1) continue;
    for (int i = 0; i < batch.n_tokens; ++i) {
      batch.token[i] = ids[static_cast<std::size_t>(i)];
      batch.pos[i] = i;
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = 1;
    }
    llama_memory_clear(llama_get_memory(context), true);
    if (llama_decode(context, batch) != 0) return std::fprintf(stderr, "decoding failed\n"), 1;
    for (int i = 0; i < batch.n_tokens; ++i) {
      nats += nats_of(llama_get_logits_ith(context, i), vocabulary,
                      ids[static_cast<std::size_t>(i) + 1]);
      ++scored;
    }
  }
  const double mean = nats / static_cast<double>(scored);
  std::printf("%zu tokens, %.6f nats per token, perplexity %.5f\n", scored, mean, std::exp(mean));
}
