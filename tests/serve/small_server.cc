// Random weights, a tokenizer trained on one sentence.
#include "serve/small_server.h"

#include <chrono>
#include <cstdlib>

#include "kernels/table.h"
#include "model/initialise.h"
#include "text/tokenizer/bpe_train.h"

namespace dsmoe::testing {
namespace {

constexpr const char* kConfig = R"({
  "architectures": ["DeepseekForCausalLM"], "model_type": "deepseek", "torch_dtype": "bfloat16",
  "vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2,
  "num_key_value_heads": 2, "intermediate_size": 48, "moe_intermediate_size": 16,
  "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2,
  "first_k_dense_replace": 1, "moe_layer_freq": 1, "norm_topk_prob": false,
  "scoring_func": "softmax", "hidden_act": "silu", "max_position_embeddings": 256,
  "initializer_range": 0.2, "rms_norm_eps": 1e-06, "rope_theta": 10000, "rope_scaling": null,
  "attention_bias": false, "tie_word_embeddings": false, "bos_token_id": 0, "eos_token_id": 1})";

constexpr const char* kText =
    "The cat sat on the mat. The dog sat on the log. One day the cat and the dog met, and they "
    "sat on the mat together. \"Where is the log?\" said the cat. \"In the fog,\" said the dog.\n";

}  // namespace

std::unique_ptr<model::Model> small_model(const kernels::Context& context,
                                          const SmallModelOptions& options) {
  model::ModelConfig config = model::parse_config(kConfig, "small model");
  config.max_position_embeddings = options.positions;
  model::InitialWeights weights(config, 7);
  return model::make_model(context, config, weights, {.operand = tensor::DType::BF16});
}

serve::TextParts small_text() {
  ThreadPool pool(1);
  text::SpecialTokens special;
  special.bos = text::SpecialToken{.content = "<|begin|>", .id = 0};
  special.eos = text::SpecialToken{.content = "<|end|>", .id = 1};
  special.pad = special.eos;
  text::WordCounts counts(special.contents());
  counts.add_text(kText, pool);
  const text::TrainedBpe trained = text::train_bpe(counts, {.vocab_size = 300, .special = special});
  serve::TextParts parts;
  parts.tokenizer = text::Tokenizer::from_json(text::to_tokenizer_json(trained), "small tokenizer");
  parts.chat_template =
      text::ChatTemplate::parse(text::deepseek_chat_template(), "DeepSeek's template");
  parts.special = {.bos = "<|begin|>", .eos = "<|end|>"};
  return parts;
}

SmallServer::SmallServer(SmallServerOptions options, const SmallModelOptions& model)
    : pool_(options.threads) {
  context_ = {.table = &kernels::select_cpu_table(), .pool = &pool_};
  model_ = small_model(context_, model);
  options.http.port = 0;
  service_ = std::make_unique<serve::Service>(
      serve::ServiceOptions{.api = options.api, .http = options.http});
  serve::TextParts text = small_text();
  if (!options.chat_template.empty()) {
    text.chat_template = text::ChatTemplate::parse(options.chat_template, "the test's template");
  }
  service_->open({.context = context_,
                  .model = *model_,
                  .text = std::move(text),
                  .id = "small",
                  .engine = options.engine});
  thread_ = std::thread([this, on_thread = options.on_thread] {
    if (on_thread) on_thread();
    service_->run();
  });
}

SmallServer::~SmallServer() { stop(); }

void SmallServer::stop() {
  if (!thread_.joinable()) return;
  service_->shut_down();
  thread_.join();
}

double wait_for_metric(SmallServer& server, const std::string& name, double expected) {
  double value = -1;
  for (int i = 0; i < 6000 && value != expected; ++i) {
    const std::string text = "\n" + server.get("/metrics").body;
    const std::size_t at = text.find("\n" + name + " ");
    value = at == std::string::npos ? -1 : std::atof(text.c_str() + at + name.size() + 2);
    if (value != expected) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return value;
}

}  // namespace dsmoe::testing
