// Parameters come out of fused, transposed, split and re-ordered tensors as they are.
#include "model/file_layout.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "base/error.h"
#include "kernels/table.h"
#include "model/initialise.h"
#include "model/language_model.h"

namespace dsmoe::model {
namespace {

using tensor::DType;
using tensor::Shape;
using tensor::TensorView;

ModelConfig small() {
  ModelConfig config{.vocab_size = 40,
                     .hidden_size = 32,
                     .num_hidden_layers = 2,
                     .num_attention_heads = 4,
                     .num_key_value_heads = 2,
                     .head_dim = 8,
                     .intermediate_size = 24,
                     .max_position_embeddings = 16,
                     .n_routed_experts = 3,
                     .n_shared_experts = 2,
                     .num_experts_per_tok = 2,
                     .moe_intermediate_size = 16,
                     .first_k_dense_replace = 1};
  config.torch_dtype = DType::F32;
  config.check("test");
  return config;
}

// As fused families and GGUF do it: one tensor for all experts with gate above up, down the other
// way round, q in pairs, and the shared experts' gate in two tensors.
constexpr RoleName kFused[] = {
    {Role::embedding, "embed"},
    {Role::attention_norm, "{layer}.norm1"},
    {.role = Role::query, .pattern = "{layer}.q", .order = Order::rotary_pairs},
    {Role::key, "{layer}.k"},
    {Role::value, "{layer}.v"},
    {.role = Role::attention_out, .pattern = "{layer}.o", .order = Order::transposed},
    {Role::ffn_norm, "{layer}.norm2"},
    {Role::router, "{layer}.router"},
    {.role = Role::routed_gate, .pattern = "{layer}.gate_up", .part = {0, 2}},
    {.role = Role::routed_up, .pattern = "{layer}.gate_up", .part = {1, 2}},
    {.role = Role::routed_down, .pattern = "{layer}.down", .order = Order::transposed},
    {Role::shared_gate, "{layer}.shared.0.gate"},
    {Role::shared_gate, "{layer}.shared.1.gate"},
    {.role = Role::shared_up, .pattern = "{layer}.shared.up", .order = Order::transposed},
    {Role::shared_down, "{layer}.shared.down"},
    {.role = Role::dense_gate,
     .pattern = "{layer}.dense",
     .part = {0, 2},
     .order = Order::transposed},
    {.role = Role::dense_up,
     .pattern = "{layer}.dense",
     .part = {1, 2},
     .order = Order::transposed},
    {Role::dense_down, "{layer}.dense.down"},
    {Role::final_norm, "norm"},
    {Role::head, "head"},
};

struct Tensor {
  Shape shape;
  std::vector<float> values;
};

class Files : public tensor::TensorSource {
 public:
  std::string what() const override { return "test files"; }
  TensorView tensor(const std::string& name) override {
    Tensor& tensor = all.at(name);
    return {.data = tensor.values.data(), .dtype = DType::F32, .shape = tensor.shape};
  }
  void release(const std::string&) override {}
  std::map<std::string, Tensor> all;
};

using Matrix = std::vector<float>;  // row-major

Matrix transposed(const Matrix& m, int64_t columns) {
  const int64_t rows = static_cast<int64_t>(m.size()) / columns;
  Matrix out(m.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) out[c * rows + r] = m[r * columns + c];
  }
  return out;
}

// Row 2i of a head of the file is row i of the head, row 2i + 1 is row i + head_dim / 2.
Matrix in_pairs(const Matrix& m, int64_t columns, int64_t head_dim) {
  Matrix out;
  const int64_t rows = static_cast<int64_t>(m.size()) / columns;
  for (int64_t head = 0; head < rows; head += head_dim) {
    for (int64_t i = 0; i < head_dim; ++i) {
      const int64_t row = head + (i % 2 == 0 ? i / 2 : i / 2 + head_dim / 2);
      out.insert(out.end(), m.begin() + row * columns, m.begin() + (row + 1) * columns);
    }
  }
  return out;
}

void append(Matrix& to, const Matrix& more) { to.insert(to.end(), more.begin(), more.end()); }

// The files of kFused, written out by hand.
std::unique_ptr<Files> fused_files(const ModelConfig& config) {
  InitialWeights weights(config, 1);
  std::map<std::string, Matrix> by_name;
  for (const Parameter& parameter : inventory(config).parameters) {
    const TensorView view = weights.tensor(parameter).elements;
    by_name[parameter.name].assign(view.as<float>(), view.as<float>() + view.num_elements());
  }
  const int64_t h = config.hidden_size, w = config.moe_intermediate_size;
  auto files = std::make_unique<Files>();
  const auto add = [&](const std::string& name, const Shape& shape, const Matrix& values) {
    ASSERT_EQ(shape.num_elements(), static_cast<int64_t>(values.size())) << name;
    files->all[name] = {shape, values};
  };
  add("embed", {config.vocab_size, h}, by_name.at("model.embed_tokens.weight"));
  add("norm", {h}, by_name.at("model.norm.weight"));
  add("head", {config.vocab_size, h}, by_name.at("lm_head.weight"));
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const auto of = [&](const std::string& rest) {
      return by_name.at(fmt::format("model.layers.{}.{}.weight", layer, rest));
    };
    const std::string block = std::to_string(layer) + ".";
    add(block + "norm1", {h}, of("input_layernorm"));
    add(block + "norm2", {h}, of("post_attention_layernorm"));
    add(block + "q", {32, h}, in_pairs(of("self_attn.q_proj"), h, config.head_dim));
    add(block + "k", {16, h}, of("self_attn.k_proj"));
    add(block + "v", {16, h}, of("self_attn.v_proj"));
    add(block + "o", {32, h}, transposed(of("self_attn.o_proj"), 32));
    if (!config.is_moe_layer(layer)) {
      Matrix both = of("mlp.gate_proj");
      append(both, of("mlp.up_proj"));
      add(block + "dense", {h, 48}, transposed(both, h));
      add(block + "dense.down", {h, 24}, of("mlp.down_proj"));
      continue;
    }
    add(block + "router", {3, h}, of("mlp.gate"));
    Matrix gate_up, down;
    for (int64_t e = 0; e < config.n_routed_experts; ++e) {
      const std::string expert = fmt::format("mlp.experts.{}.", e);
      append(gate_up, of(expert + "gate_proj"));
      append(gate_up, of(expert + "up_proj"));
      append(down, transposed(of(expert + "down_proj"), w));
    }
    add(block + "gate_up", {3, 2 * w, h}, gate_up);
    add(block + "down", {3, w, h}, down);
    const Matrix gate = of("mlp.shared_experts.gate_proj");
    const auto middle = gate.begin() + static_cast<std::ptrdiff_t>(gate.size() / 2);
    add(block + "shared.0.gate", {w, h}, Matrix(gate.begin(), middle));
    add(block + "shared.1.gate", {w, h}, Matrix(middle, gate.end()));
    add(block + "shared.up", {h, 2 * w}, transposed(of("mlp.shared_experts.up_proj"), h));
    add(block + "shared.down", {h, 2 * w}, of("mlp.shared_experts.down_proj"));
  }
  return files;
}

class FileLayout : public ::testing::Test {
 protected:
  // Whether every parameter comes out of the files as InitialWeights made it.
  bool gives_all(NameMap names) {
    FileParameters source(fused_files(config_), names, config_, pool_);
    InitialWeights weights(config_, 1);
    bool same = true;
    for (const Parameter& parameter : inventory(config_).parameters) {
      const TensorView wanted = weights.tensor(parameter).elements;
      const TensorView found = source.tensor(parameter).elements;
      EXPECT_EQ(found.shape, wanted.shape) << parameter.name;
      same = same && std::memcmp(found.data, wanted.data, wanted.num_bytes()) == 0;
      source.release_rows(parameter, 0, 1);
      source.release(parameter);
    }
    return same;
  }

  ThreadPool pool_{2};
  ModelConfig config_ = small();
};

TEST_F(FileLayout, TheUsualNamesAreWholeTensorsInTheOrderOfTheInventory) {
  for (const Parameter& parameter : inventory(config_).parameters) {
    const std::vector<FilePiece> pieces = pieces_of(kDeepseekNames, config_, parameter);
    ASSERT_EQ(pieces.size(), 1u);
    EXPECT_EQ(pieces[0].tensor, parameter.name);
    EXPECT_EQ(pieces[0].shape, parameter.shape);
    EXPECT_EQ(pieces[0].first, 0);
    EXPECT_TRUE(pieces[0].is_contiguous());
  }
}

TEST_F(FileLayout, ListsEachTensorOfTheFilesOnce) {
  std::map<std::string, Shape> listed;
  for (const tensor::TensorSpec& spec : file_tensors(kFused, config_)) {
    EXPECT_TRUE(listed.try_emplace(spec.name, spec.shape).second) << spec.name;
  }
  std::map<std::string, Shape> written;
  const std::unique_ptr<Files> files = fused_files(config_);
  for (const auto& [name, tensor] : files->all) written[name] = tensor.shape;
  EXPECT_EQ(listed, written);
}

TEST_F(FileLayout, GivesParametersOutOfFusedTransposedSplitAndReorderedTensors) {
  EXPECT_TRUE(gives_all(kFused));
}

TEST_F(FileLayout, AWrongOrderOrPartIsNoticed) {  // the controls
  for (std::size_t i = 0; i < std::size(kFused); ++i) {
    std::vector<RoleName> names(std::begin(kFused), std::end(kFused));
    if (names[i].order == Order::rotary_pairs) {
      names[i].order = Order::as_is;
    } else if (names[i].part.count == 2) {
      names[i].part.index = 1 - names[i].part.index;
    } else {
      continue;
    }
    EXPECT_FALSE(gives_all(names)) << names[i].pattern;
  }
}

TEST_F(FileLayout, AModelOfFusedFilesIsTheModel) {
  const kernels::Context context{.table = &kernels::select_cpu_table(), .pool = &pool_};
  InitialWeights weights(config_, 1);
  FileParameters source(fused_files(config_), kFused, config_, pool_);
  const auto wanted = make_model(context, config_, weights, {.operand = DType::F32});
  const auto found = make_model(context, config_, source, {.operand = DType::F32});
  const auto a = wanted->weights.blocks(), b = found->weights.blocks();
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].size(), b[i].size());
    EXPECT_EQ(std::memcmp(a[i].data(), b[i].data(), a[i].size()), 0) << "block " << i;
  }
}

TEST_F(FileLayout, RefusesTensorsOfAnotherShape) {
  for (const char* name : {"0.q", "1.gate_up", "norm"}) {
    auto files = fused_files(config_);
    files->all.at(name).shape = {7};
    FileParameters source(std::move(files), kFused, config_, pool_);
    std::string said;
    for (const Parameter& parameter : inventory(config_).parameters) {
      try {
        source.tensor(parameter);
      } catch (const Error& error) {
        said = error.what();
        break;
      }
    }
    EXPECT_NE(said.find(fmt::format("{} should be [", name)), std::string::npos) << said;
    EXPECT_NE(said.find("the file has [7]"), std::string::npos) << said;
  }
}

}  // namespace
}  // namespace dsmoe::model
