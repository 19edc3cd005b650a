// How ranks share a training run: who computes which units, who holds which experts, and in how
// many shards gradients are summed. The rule is in docs/numerics.md ("Ranks").
#pragma once

#include <cstdint>

namespace dsmoe::train {

// A unit is a balance group of rows; rank r of R has the units u with u mod R = r. Units r + k R of
// all r are block k. Of D replicas of the experts, rank r has number r mod D, of which it is expert
// rank r div D of E.
struct RankLayout {
  int64_t rank = 0;
  int64_t ranks = 1;          // R
  int64_t expert_ranks = 1;   // E: share the experts of one replica
  int64_t shards = 1;         // V: sums of dense parameters' gradients
  int64_t expert_shards = 1;  // W: of the routed experts'

  bool is_plain() const { return ranks == 1 && shards == 1 && expert_shards == 1; }
  int64_t replicas() const { return ranks / expert_ranks; }  // D
  int64_t expert_rank_of(int64_t of_rank) const { return of_rank / replicas(); }
  int64_t expert_rank() const { return expert_rank_of(rank); }
  int64_t replica() const { return rank % replicas(); }

  // Shards whose gradients this rank makes, each in a buffer of its own: shard r + j R is buffer j
  // of rank r, shard d + a D of the experts is buffer a of replica d.
  int64_t dense_buffers() const { return shards / ranks; }
  int64_t expert_buffers() const { return expert_shards / replicas(); }
  // Where units have buffers of their own, a micro-batch holds one unit.
  bool is_unit_by_unit() const { return dense_buffers() > 1 || expert_buffers() > 1; }
  int64_t dense_buffer_of_block(int64_t block) const { return block % dense_buffers(); }
  int64_t expert_buffer_of(int64_t block, int64_t of_expert_rank) const {
    const int64_t unit = block * ranks + replica() + of_expert_rank * replicas();
    return unit % expert_shards / replicas();
  }
};

// Error(usage) where ranks do not divide shards, or there are more ranks than experts to share.
void check_layout(const RankLayout& layout, int64_t num_experts);

}  // namespace dsmoe::train
