// Perplexity of token ids by llama.cpp, cut into windows as `dsmoe eval --window W` cuts them: score MODEL.gguf IDS W [THREADS].
// Built against llama.cpp by run.sh; not a part of the program.
#include <llama.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <vector>

namespace {

// Ids apart by anything that is not a digit.
std::vector<llama_token> read_ids(const char* path) {
  std::ifstream file(path);
  std::vector<llama_token> ids;
  bool inside = false;
  for (char c = 0; file.get(c);) {
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
  if (argc < 4) return std::fprintf(stderr, "usage: score MODEL.gguf IDS WINDOW [THREADS]\n"), 2;
  const std::vector<llama_token> ids = read_ids(argv[2]);
  const int window = std::atoi(argv[3]);
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (model == nullptr) return std::fprintf(stderr, "cannot load %s\n", argv[1]), 1;
  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = static_cast<uint32_t>(window);
  params.n_threads = params.n_threads_batch = argc > 4 ? std::atoi(argv[4]) : 2;
  llama_context* context = llama_init_from_model(model, params);
  if (context == nullptr) return std::fprintf(stderr, "cannot make a context\n"), 1;
  const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));

  llama_batch batch = llama_batch_init(window, 0, 1);
  double nats = 0;
  std::size_t scored = 0;
  for (std::size_t begin = 0; begin + 1 < ids.size(); begin += static_cast<std::size_t>(window)) {
    batch.n_tokens = static_cast<int>(std::min<std::size_t>(window, ids.size() - 1 - begin));
    for (int i = 0; i < batch.n_tokens; ++i) {
      batch.token[i] = ids[begin + static_cast<std::size_t>(i)];
      batch.pos[i] = i;
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = 1;
    }
    llama_memory_clear(llama_get_memory(context), true);
    if (llama_decode(context, batch) != 0) return std::fprintf(stderr, "decoding failed\n"), 1;
    for (int i = 0; i < batch.n_tokens; ++i) {
      nats += nats_of(llama_get_logits_ith(context, i), vocabulary,
                      ids[begin + static_cast<std::size_t>(i) + 1]);
      ++scored;
    }
  }
  const double mean = nats / static_cast<double>(scored);
  std::printf("{\"scored\": %zu, \"nats_per_token\": %.9f, \"perplexity\": %.7f}\n", scored, mean,
              std::exp(mean));
}
