// The inventory against what files hold, against the memory it describes, and cut into shares.
#include "model/inventory.h"
#include "model/file_layout.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>

#include "store/hf_folder.h"

namespace dsmoe::testing {
namespace {

namespace fs = std::filesystem;
using model::Inventory;
using model::ModelConfig;
using model::Parameter;
using model::Place;
using model::Role;
using model::Stack;

std::vector<fs::path> golden_folders() {
  std::vector<fs::path> folders;
  for (const auto& entry : fs::directory_iterator(fs::path(DSMOE_SOURCE_DIR) / "tests/goldens")) {
    folders.push_back(entry.path());
  }
  return folders;
}

std::vector<ModelConfig> golden_configs() {
  std::vector<ModelConfig> configs;
  for (const fs::path& folder : golden_folders()) configs.push_back(model::read_config(folder));
  return configs;
}

using Shapes = std::map<std::string, tensor::Shape>;

Shapes shapes_in(const fs::path& path) {
  Shapes shapes;
  const store::HfFolder folder = store::HfFolder::open(path);
  for (const std::string_view name : folder.names()) {
    shapes[std::string(name)] = folder.at(name).shape;
  }
  return shapes;
}

// The inventory as files of the configuration's type name it.
Shapes shapes_of(const ModelConfig& config) {
  Shapes shapes;
  for (const Parameter& parameter : model::inventory(config).parameters) {
    shapes[name_of(config.file_names, parameter.role, parameter.layer, parameter.expert)] =
        parameter.shape;
  }
  return shapes;
}

TEST(Inventory, IsWhatEveryGoldenFolderHolds) {
  for (const fs::path& path : golden_folders()) {
    const ModelConfig config = model::read_config(path);
    const Shapes stored = shapes_in(path);
    const Inventory all = model::inventory(config);
    EXPECT_EQ(shapes_of(config), stored) << path;
    EXPECT_EQ(all.parameters.size(), stored.size()) << path;
    EXPECT_EQ(config.num_tensors(), static_cast<int64_t>(stored.size())) << path;

    ModelConfig other = config;  // the control
    other.tie_word_embeddings = !config.tie_word_embeddings;
    EXPECT_NE(shapes_of(other), stored) << path;
    other = config;
    other.hidden_size += 1;
    EXPECT_NE(shapes_of(other), stored) << path;
  }
}

// Empty, or the first row of a stack that no parameter or more than one lies in.
std::string fault_of_places(const Inventory& all) {
  std::vector<std::vector<int>> uses;
  for (const Stack& stack : all.stacks) {
    uses.emplace_back(static_cast<std::size_t>(stack.count * stack.rows()));
  }
  for (const Place& place : all.places) {
    const Parameter& parameter = all.parameters.at(place.parameter);
    const Stack& stack = all.stacks.at(place.stack);
    const int64_t columns = parameter.shape.rank() == 2 ? parameter.shape[1] : 0;
    if (columns != stack.columns || parameter.layer != stack.layer ||
        parameter.coding != stack.coding) {
      return parameter.name + " is unlike its stack";
    }
    if (place.matrix >= stack.count || place.row_begin + parameter.shape[0] > stack.rows()) {
      return parameter.name + " lies beyond its stack";
    }
    for (int64_t row = 0; row < parameter.shape[0]; ++row) {
      ++uses[place.stack].at(
          static_cast<std::size_t>(place.matrix * stack.rows() + place.row_begin + row));
    }
  }
  for (std::size_t i = 0; i < uses.size(); ++i) {
    for (const int use : uses[i]) {
      if (use != 1) return fmt::format("a row of stack {} lies in {} parameters", i, use);
    }
  }
  return "";
}

TEST(Inventory, PlacesCoverEachStackOnce) {
  for (const ModelConfig& config : golden_configs()) {
    for (const int64_t ranks : {1, 2, 3}) {
      for (int64_t rank = 0; rank < ranks; ++rank) {
        Inventory all = model::inventory(config, model::share_of(config, rank, ranks));
        EXPECT_EQ(fault_of_places(all), "");
        all.places.pop_back();
        EXPECT_NE(fault_of_places(all), "");
      }
    }
    Inventory shifted = model::inventory(config);
    for (Place& place : shifted.places) {
      const Parameter& parameter = shifted.parameters[place.parameter];
      if (parameter.role != Role::key || parameter.layer != 0) continue;
      --place.row_begin;
      EXPECT_NE(fault_of_places(shifted), "");
      ++place.row_begin;
    }
    EXPECT_EQ(fault_of_places(shifted), "");
  }
}

TEST(Inventory, SharesHoldEveryExpertOnceAndTheRestEverywhere) {
  for (const ModelConfig& config : golden_configs()) {
    const Inventory all = model::inventory(config);
    for (const int64_t ranks : {2, 3}) {
      std::map<std::string, int64_t> holders;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const model::Share share = model::share_of(config, rank, ranks);
        for (const Parameter& parameter : model::inventory(config, share).parameters) {
          ++holders[parameter.name];
          if (parameter.expert < 0) continue;
          EXPECT_GE(parameter.expert, share.first_expert);
          EXPECT_LT(parameter.expert, share.first_expert + share.num_experts);
        }
      }
      EXPECT_EQ(holders.size(), all.parameters.size());
      for (const Parameter& parameter : all.parameters) {
        EXPECT_EQ(holders[parameter.name], parameter.expert >= 0 ? 1 : ranks) << parameter.name;
      }
    }
  }
  ModelConfig config;
  config.n_routed_experts = 7;
  EXPECT_EQ(model::share_of(config).num_experts, 7);
  EXPECT_EQ(model::share_of(config, 1, 2).first_expert, 3);
  EXPECT_EQ(model::share_of(config, 1, 2).num_experts, 4);
  EXPECT_THROW(model::share_of(config, 2, 2), Error);
}

TEST(Inventory, TiedEmbeddingIsOneParameterWithTwoPlaces) {
  int num_tied = 0;
  for (const ModelConfig& config : golden_configs()) {
    const Inventory all = model::inventory(config);
    std::map<std::size_t, std::vector<Role>> stacks_of_parameter;
    for (const Place& place : all.places) {
      stacks_of_parameter[place.parameter].push_back(all.stacks[place.stack].role);
    }
    ASSERT_EQ(stacks_of_parameter.size(), all.parameters.size());
    for (std::size_t i = 0; i < all.parameters.size(); ++i) {
      const Role role = all.parameters[i].role;
      const bool is_tied = role == Role::embedding && config.tie_word_embeddings;
      num_tied += is_tied ? 1 : 0;
      EXPECT_EQ(stacks_of_parameter[i].size(), is_tied ? 2u : 1u) << all.parameters[i].name;
      if (!is_tied) continue;
      EXPECT_EQ(stacks_of_parameter[i], (std::vector{Role::embedding, Role::head}));
    }
  }
  EXPECT_GT(num_tied, 0);
}

// What each parameter is, written down once more by the endings of published names.
TEST(Inventory, PropertiesFollowFromTheRole) {
  std::set<Role> seen;
  for (ModelConfig config : golden_configs()) {
    config.quantization = {.projections = tensor::WeightCoding::int4,
                           .head = tensor::WeightCoding::int8};
    for (const Parameter& parameter : model::inventory(config).parameters) {
      const std::string& name = parameter.name;
      seen.insert(parameter.role);
      const bool is_norm = name.ends_with("norm.weight");
      const bool is_bias = name.ends_with(".bias");
      const bool is_selection = name.ends_with(".e_score_correction_bias");
      EXPECT_EQ(parameter.initial, is_norm                   ? model::Initial::ones
                                   : is_bias || is_selection ? model::Initial::zeros
                                                             : model::Initial::normal)
          << name;
      EXPECT_EQ(parameter.update, is_selection         ? model::Update::by_load
                                  : is_norm || is_bias ? model::Update::undecayed
                                                       : model::Update::decayed)
          << name;
      for (const auto type : {tensor::DType::F32, tensor::DType::BF16}) {
        EXPECT_EQ(stored_type(parameter, type), is_selection ? tensor::DType::F32 : type) << name;
      }
      const bool is_projection =
          name.ends_with("_proj.weight") || name.ends_with("_proj_with_mqa.weight");
      EXPECT_EQ(parameter.coding, is_projection              ? tensor::WeightCoding::int4
                                  : name == "lm_head.weight" ? tensor::WeightCoding::int8
                                                             : tensor::WeightCoding::plain)
          << name;
      EXPECT_EQ(parameter.expert >= 0, name.find(".experts.") != std::string::npos) << name;
      EXPECT_EQ(parameter.layer >= 0, name.starts_with("model.layers.")) << name;
    }
  }
  EXPECT_EQ(seen.size(), model::kDeepseekNames.size()) << "a role that no golden has";
}

TEST(Inventory, FilesHoldScalesBesideIntegers) {
  ModelConfig config = golden_configs().front();
  std::set<std::string> plain;
  for (const auto& spec : model::expected_tensors(config)) plain.insert(spec.name);
  config.quantization = {.projections = tensor::WeightCoding::int8};
  std::set<std::string> coded;
  for (const Parameter& parameter : model::inventory(config).parameters) {
    const auto specs = model::stored_specs(config, parameter);
    EXPECT_EQ(specs.size(), parameter.coding == tensor::WeightCoding::plain ? 1u : 2u);
    EXPECT_EQ(specs.front().name, parameter.name);
    EXPECT_TRUE(plain.contains(specs.front().name));
    if (specs.size() == 2) {
      EXPECT_EQ(specs.back().name, tensor::scale_name(parameter.name));
      EXPECT_FALSE(plain.contains(specs.back().name));
    }
    for (const auto& spec : specs) coded.insert(spec.name);
  }
  EXPECT_EQ(static_cast<int64_t>(coded.size()), config.num_tensors());
  EXPECT_GT(coded.size(), plain.size());
}

TEST(Inventory, NamesOfFilesAreAnotherTable) {
  const ModelConfig config = golden_configs().front();
  std::vector<std::string> patterns(model::kDeepseekNames.size());
  std::vector<model::RoleName> names;
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    patterns[i] = fmt::format("blk.{{layer}}.role{}.{{expert}}", i);
    names.push_back({model::kDeepseekNames[i].role, patterns[i]});
  }
  const Inventory all = model::inventory(config);
  const auto usual = model::expected_tensors(config);
  const auto other = model::file_tensors(names, config);
  ASSERT_EQ(other.size(), usual.size());
  ASSERT_EQ(other.size(), all.parameters.size());
  std::set<std::string> distinct;
  for (std::size_t i = 0; i < usual.size(); ++i) {
    EXPECT_EQ(usual[i].name, all.parameters[i].name);
    EXPECT_EQ(other[i].shape, usual[i].shape);
    EXPECT_TRUE(other[i].name.starts_with(fmt::format("blk.{}.role", all.parameters[i].layer)));
    distinct.insert(other[i].name);
  }
  EXPECT_EQ(distinct.size(), usual.size());
  names.erase(names.begin());
  EXPECT_THROW(model::file_tensors(names, config), Error);
}

}  // namespace
}  // namespace dsmoe::testing
