// Attention: work units are tiles of queries that share one KV head of one sequence.
#include "kernels/cpu/ops.h"
#include "kernels/cpu/split.h"

namespace dsmoe::kernels::cpu {
namespace {

// Rows [row_begin, row_end) of the (token, head in group) pairs of one sequence and one KV head,
// token-major.
struct Tile {
  int64_t sequence;
  int64_t kv_head;
  int64_t row_begin;
  int64_t row_end;
};

class Tiles {
 public:
  explicit Tiles(const AttentionForward& args)
      : args_(args),
        starts_(args.q_starts.as<int32_t>()),
        position_(args.position.as<int32_t>()),
        group_(args.q.dim(1) / args.kv.shape.heads) {}

  template <class Visit>
  void for_each(Visit&& visit) const {
    for (int64_t s = 0; s + 1 < args_.q_starts.dim(0); ++s) {
      const int64_t rows = (starts_[s + 1] - starts_[s]) * group_;
      const int64_t parts = (rows + kAttendRows - 1) / kAttendRows;
      for (int64_t kv_head = 0; kv_head < args_.kv.shape.heads; ++kv_head) {
        for (int64_t part = 0; part < parts; ++part) {
          visit(Tile{s, kv_head, rows * part / parts, rows * (part + 1) / parts});
        }
      }
    }
  }

  int64_t token(const Tile& tile, int64_t row) const {
    return starts_[tile.sequence] + row / group_;
  }
  int64_t head(const Tile& tile, int64_t row) const { return tile.kv_head * group_ + row % group_; }
  int32_t num_keys(const Tile& tile, int64_t row) const { return position_[token(tile, row)] + 1; }

  // Blocks of keys to visit, each with a fixed part (reading them) and a part per row.
  double cost(const Tile& tile) const {
    int32_t keys = 0;
    for (int64_t row = tile.row_begin; row < tile.row_end; ++row)
      keys = std::max(keys, num_keys(tile, row));
    return static_cast<double>(keys + kKeyBlock) *
           static_cast<double>(tile.row_end - tile.row_begin + 4);
  }

 private:
  const AttentionForward& args_;
  const int32_t* starts_;
  const int32_t* position_;
  int64_t group_;
};

AttendBlock block_of(const AttentionForward& args) {
  const KvPages& kv = args.kv;
  DSMOE_CHECK(kv.shape.layout == WeightLayout::panels, "the CPU tiers need KV pages in panels");
  const auto size = static_cast<int64_t>(tensor::size_of(kv.shape.dtype));
  AttendBlock block;
  block.type = element_of(args.q.dtype);
  block.q = args.q.data;
  block.out = args.out.data;
  block.key_page_bytes = kv.shape.heads * kv.shape.key_head_elements() * size;
  block.value_page_bytes = kv.shape.heads * kv.shape.value_head_elements() * size;
  block.key_panel_bytes = kPanelWidth * panel_depth(kv.shape.dtype, kv.shape.key_width) * size;
  block.value_panel_bytes = kPanelWidth * panel_depth(kv.shape.dtype, kKeyBlock) * size;
  block.key_width = kv.shape.key_width;
  block.value_width = kv.shape.value_width;
  block.scale = args.scale;
  return block;
}

void attend_tile(const Tier& tier, const AttentionForward& args, const Tiles& tiles,
                 const Tile& tile, AttendBlock block) {
  int64_t rows[kAttendRows];
  int32_t num_keys[kAttendRows];
  const auto size = static_cast<int64_t>(tensor::size_of(args.kv.shape.dtype));
  block.num_rows = static_cast<int>(tile.row_end - tile.row_begin);
  for (int r = 0; r < block.num_rows; ++r) {
    const int64_t row = tile.row_begin + r;
    rows[r] = tiles.token(tile, row) * args.q.dim(1) + tiles.head(tile, row);
    num_keys[r] = tiles.num_keys(tile, row);
  }
  block.rows = rows;
  block.num_keys = num_keys;
  block.keys =
      static_cast<const char*>(args.kv.keys) + args.kv.shape.key_offset(0, tile.kv_head) * size;
  block.values =
      static_cast<const char*>(args.kv.values) + args.kv.shape.value_offset(0, tile.kv_head) * size;
  block.pages = args.page_table.as<int32_t>() + tile.sequence * args.page_table.dim(1);
  block.scratch = thread_scratch(attend_scratch(block.key_width, block.value_width));
  tier.attend(block);
}

}  // namespace

void attention_forward(const Tier& tier, const Context& context, const AttentionForward& args) {
  const Tiles tiles(args);
  const AttendBlock block = block_of(args);
  double total = 0;
  tiles.for_each([&](const Tile& tile) { total += tiles.cost(tile); });
  run_shares(context, total, 0, [&](Share& share) {
    tiles.for_each([&](const Tile& tile) {
      const Range mine = share.take(1, tiles.cost(tile));
      if (mine.begin < mine.end) attend_tile(tier, args, tiles, tile, block);
    });
  });
}

}  // namespace dsmoe::kernels::cpu
