// The inventory: every parameter of a model once, with all that is known of it before its numbers
// are. Whatever counts, allocates, loads, saves, starts, decays, quantises or differentiates
// parameters is a loop over it; stacks() in inventory.cc is the list of what a model holds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/parameter_names.h"
#include "tensor/quantised.h"
#include "tensor/tensor_spec.h"

namespace dsmoe::model {

// What one of several ranks holds: a range of the routed experts of every layer, and all the rest.
struct Share {
  int64_t rank = 0;
  int64_t ranks = 1;
  int64_t first_expert = 0;
  int64_t num_experts = 0;
};
// As even as it can be, in the order of ranks; by default all.
Share share_of(const ModelConfig& config, int64_t rank = 0, int64_t ranks = 1);

// What is done with a parameter; everything else about it follows from this.
enum class Kind : uint8_t {
  embedding,       // rows that are looked up
  projection,      // a matrix of attention or of an expert
  head,            // the last product's matrix
  router,          // a product that is never rounded or quantised, such as the shared gate's
  norm,            // [size]
  bias,            // [size]
  selection_bias,  // [experts]; moves by the load, not by a gradient
};
Kind kind_of(Role role);
inline bool is_matrix(Kind kind) {
  return kind == Kind::projection || kind == Kind::head || kind == Kind::router;
}

// A matrix of routed or shared experts, or of a dense layer, which is an expert for every token.
bool is_expert(Role role);

// Computed with in the operand type; the others in F32 (F64).
inline bool is_operand(Kind kind) {
  return kind == Kind::embedding || kind == Kind::projection || kind == Kind::head;
}

enum class Initial : uint8_t { normal, ones, zeros };
enum class Update : uint8_t { decayed, undecayed, by_load };  // by_load: without a gradient

struct Parameter {
  std::string name;
  Role role = Role::embedding;
  int64_t layer = -1;   // -1: of no layer
  int64_t expert = -1;  // a routed expert's number in the whole model
  tensor::Shape shape;  // [rows, columns] or [size]
  Initial initial = Initial::normal;
  Update update = Update::decayed;
  bool is_always_f32 = false;  // in files, whatever type the others have
  tensor::WeightCoding coding = tensor::WeightCoding::plain;
};

// Matrices of one shape, or a vector or table, that ops take as one thing.
struct Stack {
  struct Part {
    Role role = Role::embedding;
    int64_t rows = 0;
  };
  Role role = Role::embedding;  // the first part's; of a tied head: head
  int64_t layer = -1;
  int64_t count = 1;        // the experts; else 1
  int64_t columns = 0;      // 0: a vector
  std::vector<Part> parts;  // one below the other: q, k and v; else the whole
  std::size_t group = 0;    // the first of the stacks that hold the same experts: gate, up, down
  tensor::WeightCoding coding = tensor::WeightCoding::plain;

  bool repeats_embedding() const { return role != parts.front().role; }
  int64_t rows() const;
  tensor::Shape shape() const;  // of one matrix: [rows, columns] or [rows]
  int64_t num_elements() const { return shape().num_elements(); }
};

// Where a parameter lies. A tied embedding has two places.
struct Place {
  std::size_t parameter = 0;  // indices of the inventory
  std::size_t stack = 0;
  int64_t matrix = 0;
  int64_t row_begin = 0;
};

// All in the order of the forward pass; an expert's three matrices stand side by side.
struct Inventory {
  std::vector<Stack> stacks;
  std::vector<Parameter> parameters;
  std::vector<Place> places;
};

Inventory inventory(const ModelConfig& config, const Share& share);
inline Inventory inventory(const ModelConfig& config) {
  return inventory(config, share_of(config));
}

// Its stacks alone: few, however many experts there are.
std::vector<Stack> stacks(const ModelConfig& config, const Share& share);

// Numbers of a stack that one token meets: its experts_per_token, or all.
int64_t elements_per_token(const ModelConfig& config, const Stack& stack);

// What files of a model of this type hold of a parameter that is not coded.
inline tensor::DType stored_type(const Parameter& parameter, tensor::DType of_model) {
  const bool stays = !parameter.is_always_f32 || of_model == tensor::DType::F64;
  return stays ? of_model : tensor::DType::F32;
}

// What files of a model of this type hold of a parameter: its values, or integers and their scales.
std::vector<tensor::TensorSpec> stored_specs(const ModelConfig& config, const Parameter& parameter);

}  // namespace dsmoe::model
