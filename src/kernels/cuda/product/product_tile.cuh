// Tile shapes of the grouped product, and one tile of work.
#pragma once

#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/product/product.h"

namespace dsmoe::kernels::cuda {

constexpr int kMaxExperts = 288;  // of both families together

template <int kWeights_, int kRows_, int kBlocks_, int kStages_, int kConsumers_, int kBlocksPerSm_>
struct Variant {
  static constexpr int kWeights = kWeights_;  // weight rows of a tile
  static constexpr int kRows = kRows_;        // rows of x of a tile
  static constexpr int kBlocks = kBlocks_;    // blocks of 64 k in a stage
  static constexpr int kStages = kStages_;
  static constexpr int kConsumers = kConsumers_;  // warpgroups
  static constexpr int kBlocksPerSm = kBlocksPerSm_;
  static constexpr bool kInTurn = false;
  static constexpr bool kTransposed = false;
  static constexpr int kSharing = kConsumers;              // consumers of one tile
  static constexpr int kParts = kWeights / 64 / kSharing;  // m64 parts of a consumer
  static constexpr int kThreads = 128 * (1 + kConsumers);
  static constexpr int kWeightBlock = kWeights * 128;  // bytes of 64 k
  static constexpr int kRowBlock = kRows * 128;
  static constexpr int kStageBytes = kBlocks * (kWeightBlock + kRowBlock);
  static constexpr int kChunk =
      kRows < 64 ? kRows : 64;  // rows the epilogue handles at a time, and the tail's unit
  static constexpr int kStaging = 2 * kChunk * 128;     // per consumer
  static constexpr bool kCopiesRounded = kChunk == 64;  // bf16 results leave by the copy engine
  static constexpr int kRing = kStages + 3;
  static constexpr int kRowBox = kRows >= 128 ? 64 : 8;  // rows one copy of x brings
  static constexpr int kSharedBytes = kStages * kStageBytes + kConsumers * kStaging +
                                      (2 * kMaxExperts + 4) * 4 + kRing * 40 + kStages * 16;
  static_assert((kSharedBytes + 1024) * kBlocksPerSm <= 228 * 1024);
};

// The consumers do not share a tile but take tiles in turn: one multiplies while the other is busy
// with its epilogue.
template <class Shape>
struct InTurn : Shape {
  static constexpr bool kInTurn = true;
  static constexpr int kSharing = 1;
  static constexpr int kParts = Shape::kWeights / 64;
  static constexpr int kSharedBytes = Shape::kSharedBytes + 8 * (Shape::kRing + Shape::kConsumers);
  static_assert(kSharedBytes + 1024 <= 228 * 1024);
};

// Weights are column-major: boxes of 64 k x 64 outputs, which wgmma reads transposed.
template <class Shape>
struct Transposed : Shape {
  static constexpr bool kTransposed = true;
};

struct alignas(16) Tile {
  int32_t family;  // -1: no more tiles
  int32_t expert;
  int32_t first_row;
  int32_t num_rows;
  int32_t first_weight;
  int32_t padding[3];
};

}  // namespace dsmoe::kernels::cuda
