// Tier: the inner loops of one instruction set, as plain functions on plain pointers. Ops divide
// the work and call them.
#pragma once

#include <cstdint>

// This header is compiled for instruction sets that the running CPU may lack: data only, nothing to
// link.
namespace dsmoe::kernels::cpu {

// What an element is, and with the weight how a product adds up (docs/numerics.md).
enum class Element : uint8_t { bf16, f32 };

// What a weight's panels hold (kernels/layout.h): elements, or integers that stand for bf16
// numbers.
enum class Coding : uint8_t { plain, int8, int4 };

constexpr int64_t kLanes = 16;          // outputs of a panel, lanes of a row reduction
constexpr int64_t kAttentionKeys = 64;  // keys of a block
constexpr int64_t kSpanBlocks = 8;      // blocks of a span

enum class Epilogue : uint8_t {
  assign,      // float out = acc (+ bias)
  accumulate,  // float out = out + (acc (+ bias))
  round,       // element out = acc, rounded
  swiglu,      // element out = silu(acc of weight[0]) * acc of weight[1], rounded
};

// Rows [row_begin, row_end) times panels [panel_begin, panel_end) of one matrix, or of two side by
// side (swiglu). Row r reads row_index[r] of x (r itself when null) and writes row r of out.
struct ProductBlock {
  const void* x = nullptr;
  int64_t x_stride = 0;  // elements
  bool x_tiles = false;  // x is as GatherRows::tiles leaves it; rows from a multiple of 16 on
  const int32_t* row_index = nullptr;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  Element x_type = Element::bf16;
  Element weight_type =
      Element::bf16;              // decides the order of the sum; out elements are of this type
  Coding coding = Coding::plain;  // others: weight_type bf16
  const void* weight[2] = {nullptr, nullptr};
  int64_t k = 0;
  int64_t panel_bytes = 0;
  int64_t panel_begin = 0;
  int64_t panel_end = 0;
  int64_t n = 0;  // columns of the whole matrix; the last panel may hold fewer than 16
  Epilogue epilogue = Epilogue::assign;
  const float* bias = nullptr;
  const float* start = nullptr;  // the chains continue these sums, laid out like out; null: zero
  void* out = nullptr;
  int64_t out_stride = 0;              // elements
  void* kept[2] = {nullptr, nullptr};  // swiglu: both products, rounded, laid out like out; or null
  float* scratch = nullptr;            // kProductScratch floats, 64-byte aligned
};

constexpr int64_t kProductOperandFloats = 48 * 1024;  // widened rows: a part of the L2 cache
constexpr int64_t kTileOperandFloats =
    256 * 1024;                                    // or, for AMX with its larger one, rows as tiles
constexpr int64_t kProductTileFloats = 16 * 1024;  // accumulators
constexpr int64_t kProductPanelFloats = 32 * 1024;  // AMX: 2048 k of two panels as bf16, decoded
constexpr int64_t kProductScratch = kTileOperandFloats + kProductTileFloats + kProductPanelFloats;

// What products cost, for dividing them over threads; a row times a byte of weights is the unit.
struct ProductCost {
  int64_t row_unit = 1;         // rows are worked on in so many
  double stream_rows = 8;       // reading a panel takes about as long as multiplying it by these
  double worth_waking = 300e3;  // what one thread finishes before another would have woken up
};

// Queries that share one KV head of one sequence.
constexpr int kAttendRows = 48;
struct AttendBlock {
  Element type = Element::bf16;
  const void* q = nullptr;
  void* out = nullptr;
  const int64_t* rows = nullptr;      // [num_rows] places in q and in out
  const int32_t* num_keys = nullptr;  // [num_rows] at least 1
  int num_rows = 0;                   // at most kAttendRows
  const void* keys = nullptr;         // of this KV head in page 0
  const void* values = nullptr;
  int64_t key_page_bytes = 0;
  int64_t value_page_bytes = 0;
  int64_t key_panel_bytes = 0;
  int64_t value_panel_bytes = 0;
  const int32_t* pages = nullptr;
  int64_t key_width = 0;
  int64_t value_width = 0;
  float scale = 0;
  float* scratch = nullptr;  // attend_scratch(widths) floats, 64-byte aligned
};

constexpr int64_t padded_width(int64_t width) { return (width + 31) / 32 * 32; }
constexpr int64_t attend_scratch(int64_t key_width, int64_t value_width) {
  return kAttendRows *
         (padded_width(key_width) + 2 * padded_width(value_width) + 2 * kAttentionKeys);
}

struct RmsNormRows {
  const float* x = nullptr;  // [rows, size]
  const float* weight = nullptr;
  void* out = nullptr;
  Element type = Element::bf16;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  int64_t size = 0;
  float eps = 0;
};

// One head of one token: d < half pairs with d + half.
struct RotateHead {
  const float* head = nullptr;  // [2 * half]
  const float* cos = nullptr;   // [half]
  const float* sin = nullptr;
  int64_t half = 0;
  float* out = nullptr;  // [2 * half], not rounded
};

// One token: terms by ascending expert; joins[i] additions of the two topmost partial sums follow
// term i.
struct CombineRow {
  const void* const* routed = nullptr;  // [terms] rows
  const float* gate = nullptr;          // [terms]; null: 1 each
  const uint8_t* joins = nullptr;       // [terms]
  int terms = 0;
  const void* shared = nullptr;        // or null
  const float* shared_gate = nullptr;  // null: 1
  float* residual = nullptr;
  bool add_to_residual = true;
  Element type = Element::bf16;
  int64_t size = 0;
};
constexpr int kMaxPartialSums = 33;  // one per bit of an expert index, and the newest

// 16 rows of a row-major source into one panel; rows outside [lane_begin, lane_end) are left as
// they are.
struct PackPanel {
  const void* source = nullptr;  // row lane_begin; any alignment
  Element source_type = Element::bf16;
  Element target_type = Element::bf16;
  int64_t k = 0;
  int lane_begin = 0;
  int lane_end = 0;
  void* panel = nullptr;
};

// Sixteen rows of integers, all groups whole, and their scales into one panel.
struct PackGroups {
  Coding coding = Coding::int8;
  const void* integers = nullptr;  // any alignment, like scales
  const void* scales = nullptr;    // [16, groups] bf16
  int64_t groups = 0;
  void* panel = nullptr;
};

// Rows of a source become consecutive k of one panel: the panel's outputs are columns of the
// source.
struct PackColumns {
  const void* source = nullptr;  // first row, first column of the panel; any alignment
  int64_t source_stride = 0;     // elements
  int64_t rows = 0;
  int64_t k_begin = 0;  // where the first row goes
  int columns = 0;      // of the panel, at most 16
  Element source_type = Element::bf16;
  Element target_type = Element::bf16;
  void* panel = nullptr;
};

// Rows of a source that a product over rows reads: k of the product is row row_of_k[k].
struct GatherRows {
  const void* source = nullptr;
  int64_t stride = 0;  // elements
  Element source_type = Element::bf16;
  Element target_type = Element::bf16;  // the rule of the product
  const int32_t* row_of_k = nullptr;    // [depth]; -1: zeros
  int64_t depth = 0;                    // a multiple of 32
  int64_t column_begin = 0;
  int64_t column_end = 0;
  void* out = nullptr;
  // gather_transposed of bf16: not [columns, depth], but tiles of 16 columns by 32 k, those of the
  // same columns together; columns behind the end are left as they are.
  bool tiles = false;
};

// One row of an expert on the way back (kernels/experts.h, ExpertsDownBackward).
struct SwigluBackwardRow {
  Element type = Element::bf16;
  int64_t size = 0;
  const float* a = nullptr;          // gradient of the activation before the gate
  const void* activation = nullptr;  // with gate only
  const void* gate_product = nullptr;
  const void* up_product = nullptr;
  const float* gate = nullptr;  // null: 1, and the next two are not wanted
  float* d_gate = nullptr;
  void* scaled_activation = nullptr;
  void* d_gate_product = nullptr;
  void* d_up_product = nullptr;
};

struct RmsNormBackwardRows {
  const float* x = nullptr;  // [rows, size], like d_out and d_x
  const float* weight = nullptr;
  const float* d_out = nullptr;
  float* d_x = nullptr;
  float* inverse = nullptr;  // [rows], written by the rows, read by the columns
  int64_t size = 0;
  float eps = 0;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  // The weight's gradient: per column and sequence one chain.
  float* d_weight = nullptr;
  const int32_t* starts = nullptr;  // in tokens
  int64_t rows_per_token = 1;
  int64_t sequences = 0;
  int64_t column_begin = 0;
  int64_t column_end = 0;
};

struct CrossEntropyRow {
  const float* logits = nullptr;
  int64_t size = 0;
  int64_t target = 0;
  float max = 0;
  float sum = 0;
  float scale = 0;
  Element type = Element::bf16;
  void* d_logits = nullptr;
};

struct AdamwRange {
  float* weight = nullptr;
  float* gradient = nullptr;
  float* first_moment = nullptr;
  float* second_moment = nullptr;
  int64_t size = 0;
  float gradient_scale = 1;
  float lr = 0;
  float beta1 = 0;
  float beta2 = 0;
  float eps = 0;
  float weight_decay = 0;
  float correction1 = 1;
  float correction2 = 1;
  bool clear_gradient = false;
  uint16_t* rounded = nullptr;  // bf16 of the new weight, or null
};

// One query of one head on the way back (kernels/attention.h).
struct AttendBackwardRow {
  Element type = Element::bf16;
  float* s = nullptr;         // [padded_keys] q . k, overwritten
  const float* dp = nullptr;  // [padded_keys] d_out . v
  int64_t keys = 0;           // that the query sees
  int64_t padded_keys = 0;    // a multiple of 64
  const void* out = nullptr;  // [width]
  const void* d_out = nullptr;
  int64_t width = 0;  // of a value
  float scale = 0;
  void* p = nullptr;  // [padded_keys], rounded; zero behind the last key
  void* ds = nullptr;
};

struct MaxAndSum {
  float max = 0;
  float sum = 0;  // of exp(s - max)
};

struct Tier {
  ProductCost product_cost;
  bool tile_operands = false;  // bf16 products take x_tiles, and work with them
  void (*product)(const ProductBlock&) = nullptr;
  void (*attend)(const AttendBlock&) = nullptr;
  void (*rms_norm)(const RmsNormRows&) = nullptr;
  void (*rotate)(const RotateHead&) = nullptr;
  void (*combine)(const CombineRow&) = nullptr;
  void (*pack)(const PackPanel&) = nullptr;
  void (*pack_columns)(const PackColumns&) = nullptr;
  void (*pack_groups)(const PackGroups&) = nullptr;  // null: the reference packs integers
  void (*widen)(const void* bf16, float* out, int64_t size) = nullptr;
  void (*round)(const float* x, void* bf16, int64_t size) = nullptr;
  void (*softmax)(float* s, int64_t size) = nullptr;  // in place
  void (*sigmoid)(float* s, int64_t size) = nullptr;  // in place
  MaxAndSum (*max_and_sum)(const float* s, int64_t size) = nullptr;
  // The first of the largest; -1 when one of at least one is not finite.
  int64_t (*index_of_max)(const float* s, int64_t size) = nullptr;

  void (*gather_panels)(const GatherRows&) = nullptr;      // out: panels of depth k
  void (*gather_transposed)(const GatherRows&) = nullptr;  // out: [columns, depth]
  void (*swiglu_backward)(const SwigluBackwardRow&) = nullptr;
  void (*rms_norm_backward)(const RmsNormBackwardRows&) = nullptr;
  void (*rms_norm_weight)(const RmsNormBackwardRows&) = nullptr;
  void (*attend_backward)(const AttendBackwardRow&) = nullptr;
  void (*cross_entropy)(const CrossEntropyRow&) = nullptr;
  void (*adamw)(const AdamwRange&) = nullptr;
  double (*sum_of_squares)(const float* x, int64_t size) = nullptr;
};

}  // namespace dsmoe::kernels::cpu

namespace dsmoe::kernels::v3 {
extern const cpu::Tier kTier;
}
namespace dsmoe::kernels::v4 {
extern const cpu::Tier kTier;
}
namespace dsmoe::kernels::v4_bf16 {
extern const cpu::Tier kTier;
// Weights of int4; at least one row and one panel.
void product_int4(const cpu::ProductBlock& args);
}  // namespace dsmoe::kernels::v4_bf16
namespace dsmoe::kernels::amx {
extern const cpu::Tier kTier;
// Both types are bf16, the coding is any; there is at least one row and one panel.
void product_bf16(const cpu::ProductBlock& args);
void attend_bf16(const cpu::AttendBlock& args);
}  // namespace dsmoe::kernels::amx
