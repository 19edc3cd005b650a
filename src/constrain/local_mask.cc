// A walk through the vocabulary's trie with a caller that is not known.
#include "constrain/local_mask.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "base/error.h"

namespace dsmoe::constrain {
namespace {

// A list of so many tokens takes about as long to set as all words to copy.
constexpr std::size_t kMaxListed = 512;
constexpr std::size_t kMaxRemainders = std::size_t{1} << 21;
constexpr int64_t kMaxSteps = int64_t{1} << 24;  // of heads, a second

class LocalWalk {
 public:
  LocalWalk(const Automaton& automaton, const Vocabulary& vocabulary, int32_t state_idx)
      : automaton_(automaton),
        vocabulary_(vocabulary),
        rule_(automaton.rule_of(state_idx)),
        frames_(automaton),
        stepper_(automaton, frames_) {
    walk(state_idx);
    make_classes();
    make_remainders();
  }

  LocalMask take() { return std::move(mask_); }

 private:
  struct Left {
    std::string_view bytes;
    int32_t token;
    uint32_t items;
  };

  void walk(int32_t state_idx) {
    std::vector<Configuration> at(vocabulary_.max_depth() + 1);
    std::vector<std::size_t> num_frames(at.size());
    at[0].heads = {{.state = state_idx, .frame = Frames::kUnknown}};
    num_frames[0] = frames_.size();
    const std::span<const Vocabulary::Node> nodes = vocabulary_.nodes();
    for (std::size_t n = 0; n < nodes.size();) {
      const std::size_t depth = nodes[n].depth;
      const Configuration& before = at[depth - 1];
      Configuration& here = at[depth];
      if (!step_plainly(before, nodes[n].byte, here)) {
        frames_.shrink(num_frames[depth - 1]);
        items_of_frame_.resize(std::min(items_of_frame_.size(), frames_.size()));
        stepper_.step(before, nodes[n].byte, here);
      }
      num_frames[depth] = frames_.size();
      num_steps_ += static_cast<int64_t>(before.heads.size());
      if (num_steps_ > kMaxSteps) fail(ErrorKind::input, "the constraint is too ambiguous");
      for (const uint32_t items : here.exits) leave(n, items, here.heads.empty());
      if (here.heads.empty()) {
        n = nodes[n].end;
        continue;
      }
      if (const auto tokens = vocabulary_.tokens_at(n); !tokens.empty()) accept(tokens, here);
      ++n;
    }
  }

  // Most steps by far: one head, which neither calls nor ends anything.
  bool step_plainly(const Configuration& before, uint8_t byte, Configuration& here) {
    if (before.heads.size() != 1) return false;
    const Head& head = before.heads[0];
    const State& state = automaton_.state(head.state);
    const int32_t target = automaton_.next(state, byte);
    if (target >= 0) {
      const State& next = automaton_.state(target);
      if (next.is_final || next.num_calls > 0 || next.num_bytes == 0 ||
          automaton_.rule(state.rule).is_counted) {
        return false;
      }
    }
    here.heads.clear();
    here.exits.clear();
    here.may_end = false;
    if (target >= 0) here.heads.push_back({.state = target, .frame = head.frame});
    return true;
  }

  void accept(std::span<const int32_t> tokens, const Configuration& here) {
    std::pair<uint32_t, int32_t> best{kNoMost, kNever};
    for (const Head& head : here.heads) {
      best = std::min(best, {items_of(head), frames_.rest(head)});
    }
    // Mostly that of the token before.
    if (last_list_ == nullptr || best != last_class_) {
      last_class_ = best;
      last_list_ = &classes_[best];
    }
    last_list_->insert(last_list_->end(), tokens.begin(), tokens.end());
  }

  // Of the rule that the unknown caller called. Each frame is looked at once: there may be more
  // ways through them than anybody could follow. Callers have lower numbers than what they called.
  uint32_t items_of(const Head& head) {
    for (std::size_t f = items_of_frame_.size(); f < frames_.size(); ++f) {
      uint32_t items = kNoMost;
      for (const Head& back : frames_.returns(static_cast<int32_t>(f))) {
        items = std::min(items, known_items_of(back));
      }
      items_of_frame_.push_back(items);
    }
    return known_items_of(head);
  }
  uint32_t known_items_of(const Head& head) const {
    return head.frame == Frames::kUnknown ? head.count
                                          : items_of_frame_[static_cast<std::size_t>(head.frame)];
  }

  // The rule has ended at node n. Tokens that end there too are right if the rule may end there.
  void leave(std::size_t n, uint32_t items, bool ends_for_certain) {
    const std::span<const Vocabulary::Node> nodes = vocabulary_.nodes();
    const std::size_t depth = nodes[n].depth;
    const auto add = [&](std::span<const int32_t> tokens) {
      for (const int32_t token : tokens) {
        left_.push_back({vocabulary_.bytes(token).substr(depth), token, items});
      }
    };
    if (!rule_.is_counted) {
      // Nothing can forbid it.
      std::vector<int32_t>& list = classes_[{0, 0}];
      const auto tokens = vocabulary_.tokens_at(n);
      list.insert(list.end(), tokens.begin(), tokens.end());
    } else if (ends_for_certain) {
      add(vocabulary_.tokens_at(n));
    }
    for (std::size_t next = n + 1; next < nodes[n].end; next = nodes[next].end) {
      if (rule_.followed.test(nodes[next].byte)) add(vocabulary_.tokens_below(next));
    }
    if (left_.size() > kMaxRemainders) fail(ErrorKind::input, "the constraint is too ambiguous");
  }

  void make_classes() {
    mask_.all.assign(vocabulary_.num_words(), 0);
    for (auto& [key, tokens] : classes_) {
      TokenClass made{.items = key.first, .rest = key.second};
      for (const int32_t token : tokens) set_token(mask_.all, token);
      if (tokens.size() > kMaxListed) {
        made.bits.assign(vocabulary_.num_words(), 0);
        for (const int32_t token : tokens) set_token(made.bits, token);
      } else {
        made.tokens = std::move(tokens);
      }
      mask_.most_items = std::max(mask_.most_items, made.items);
      mask_.most_rest = std::max(mask_.most_rest, made.rest);
      mask_.classes.push_back(std::move(made));
    }
    // Small states are the most, and have no need of a word per 64 tokens.
    if (std::all_of(mask_.classes.begin(), mask_.classes.end(),
                    [](const TokenClass& c) { return c.bits.empty(); }) &&
        mask_.classes.size() <= 4) {
      mask_.all.clear();
    }
    mask_.all.shrink_to_fit();
  }

  void make_remainders() {
    std::sort(left_.begin(), left_.end(), [](const Left& a, const Left& b) {
      const int order = a.bytes.compare(b.bytes);
      return order != 0 ? order < 0 : std::pair(a.token, a.items) < std::pair(b.token, b.items);
    });
    Remainders& to = mask_.remainders;
    if (left_.empty()) return;
    std::vector<std::size_t> open;
    std::string_view last;
    // The first node stands for nothing at all: tokens that end with the rule.
    to.nodes.push_back({});
    for (const Left& left : left_) {
      const auto common = static_cast<std::size_t>(
          std::mismatch(left.bytes.begin(), left.bytes.end(), last.begin(), last.end()).first -
          left.bytes.begin());
      for (; open.size() > common; open.pop_back()) {
        to.nodes[open.back()].end = static_cast<uint32_t>(to.nodes.size());
      }
      for (std::size_t at = common; at < left.bytes.size(); ++at) {
        open.push_back(to.nodes.size());
        to.nodes.push_back({.byte = static_cast<uint8_t>(left.bytes[at]),
                            .depth = static_cast<uint16_t>(at + 1),
                            .first_token = static_cast<uint32_t>(to.tokens.size())});
      }
      to.tokens.push_back({left.token, left.items});
      to.max_depth = std::max(to.max_depth, left.bytes.size());
      last = left.bytes;
    }
    for (const std::size_t node : open) to.nodes[node].end = static_cast<uint32_t>(to.nodes.size());
    to.nodes[0].end = static_cast<uint32_t>(to.nodes.size());
    to.nodes.push_back({.end = static_cast<uint32_t>(to.nodes.size() + 1),
                        .first_token = static_cast<uint32_t>(to.tokens.size())});
  }

  const Automaton& automaton_;
  const Vocabulary& vocabulary_;
  const AutomatonRule& rule_;
  Frames frames_;
  Stepper stepper_;
  std::map<std::pair<uint32_t, int32_t>, std::vector<int32_t>> classes_;
  std::pair<uint32_t, int32_t> last_class_;
  std::vector<int32_t>* last_list_ = nullptr;  // in classes_
  std::vector<Left> left_;
  std::vector<uint32_t> items_of_frame_;
  int64_t num_steps_ = 0;
  LocalMask mask_;
};

}  // namespace

std::size_t LocalMask::num_bytes() const {
  std::size_t bytes = sizeof(*this) + all.capacity() * sizeof(uint64_t) +
                      remainders.nodes.capacity() * sizeof(Remainders::Node) +
                      remainders.tokens.capacity() * sizeof(Remainders::Token);
  for (const TokenClass& c : classes) {
    bytes +=
        sizeof(c) + c.tokens.capacity() * sizeof(int32_t) + c.bits.capacity() * sizeof(uint64_t);
  }
  return bytes;
}

LocalMask find_local_mask(const Automaton& automaton, const Vocabulary& vocabulary,
                          int32_t state_idx) {
  return LocalWalk(automaton, vocabulary, state_idx).take();
}

}  // namespace dsmoe::constrain
