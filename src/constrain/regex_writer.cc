// Items -> rules.
#include <algorithm>

#include "base/error.h"
#include "constrain/code_point_set.h"
#include "constrain/json_text.h"
#include "constrain/regex_pattern.h"

namespace dsmoe::constrain {
namespace {

constexpr double kMaxSize = 1 << 17;  // nodes that a pattern may need
// Longer repetitions of one class are counted where the count decides alone.
constexpr uint32_t kMostCopies = 16;

const CodePointSet kAnything{{0, kLastCodePoint}};

}  // namespace

class RegexWriter {
 public:
  RegexWriter(const RegexPattern& pattern, RegexPattern::Manner manner, Nfa& nfa)
      : pattern_(pattern), manner_(manner), nfa_(nfa) {}

  void write(int32_t from, int32_t to) {
    sizes_.assign(pattern_.items_.size(), 0);
    if (size_of(pattern_.root_) > kMaxSize) {
      fail(ErrorKind::input,
           "{}: the pattern is too large: with its repetitions written out it has more than {} "
           "characters",
           pattern_.place_, static_cast<int64_t>(kMaxSize));
    }
    write_top(pattern_.root_, from, to);
  }

 private:
  using Kind = RegexPattern::Kind;
  using Item = RegexPattern::Item;
  using Children = std::span<const int32_t>;

  const Item& item(int32_t index) const { return pattern_.item(index); }

  // Before anything is written. Counted repetitions are small, but that depends on what follows.
  double size_of(int32_t index) {
    const Item& i = item(index);
    double& size = sizes_[static_cast<std::size_t>(index)];
    if (size > 0) return size;
    double children = 0;
    for (const int32_t child : i.children) children += size_of(child);
    size = 1 + children;
    if (i.kind == Kind::characters) size = 2 * static_cast<double>(i.characters.size());
    if (i.kind == Kind::repeat && item(i.children[0]).kind != Kind::characters) {
      size = 1 + children * (i.times.most == kNoMost ? i.times.least + 1 : i.times.most);
    }
    return size;
  }

  // Alternatives of the whole pattern, whose ends may be tied.
  void write_top(int32_t index, int32_t from, int32_t to) {
    const Item& i = item(index);
    if (i.kind == Kind::alternatives) {
      for (const int32_t child : i.children) write_top(child, from, to);
      return;
    }
    const bool is_group = i.kind == Kind::sequence && i.children.size() == 1;
    if (is_group) return write_top(i.children[0], from, to);
    const Children all = i.kind == Kind::sequence ? Children(i.children) : Children(&index, 1);
    std::size_t begin = 0, end = all.size();
    bool tied_begin = manner_.ends == RegexPattern::Ends::whole, tied_end = tied_begin;
    for (; begin < end && item(all[begin]).kind == Kind::begin; ++begin) tied_begin = true;
    for (; begin < end && item(all[end - 1]).kind == Kind::end; --end) tied_end = true;
    if (!tied_begin) {
      const int32_t start = nfa_.add_node();
      nfa_.add_empty(from, start);
      add_characters(start, kAnything, start);
      from = start;
    }
    int32_t last = to;
    if (!tied_end) {
      last = nfa_.add_node();
      add_characters(last, kAnything, last);
      nfa_.add_empty(last, to);
    }
    write_sequence(all.subspan(begin, end - begin), from, last,
                   {.counts = true, .next = tied_end ? CodePointSet{} : kAnything});
  }

  // Whether a repetition may be counted here (not inside another), and what may follow.
  struct Around {
    bool counts = false;
    CodePointSet next = {};
  };

  void write_sequence(Children children, int32_t from, int32_t to, const Around& around) {
    if (children.empty()) return nfa_.add_empty(from, to);
    for (std::size_t c = 0; c < children.size(); ++c) {
      const bool is_last = c + 1 == children.size();
      const int32_t next = is_last ? to : nfa_.add_node();
      Around inner{.counts = around.counts};
      if (around.counts) {
        bool may_be_empty = true;
        for (std::size_t n = c + 1; n < children.size() && may_be_empty; ++n) {
          may_be_empty = add_first(children[n], inner.next);
        }
        if (may_be_empty) append(inner.next, around.next);
      }
      write_item(children[c], from, next, inner);
      from = next;
    }
  }

  // Adds what the item may begin with; returns whether it may be empty.
  bool add_first(int32_t index, CodePointSet& set) const {
    const Item& i = item(index);
    switch (i.kind) {
      case Kind::characters:
        append(set, i.characters);
        return false;
      case Kind::alternatives: {
        bool may_be_empty = false;
        for (const int32_t child : i.children) may_be_empty |= add_first(child, set);
        return may_be_empty;
      }
      case Kind::repeat:
        return add_first(i.children[0], set) || i.times.least == 0;
      case Kind::sequence:
        for (const int32_t child : i.children) {
          if (!add_first(child, set)) return false;
        }
        return true;
      case Kind::begin:
      case Kind::end:
        return true;
    }
    return true;
  }

  void write_item(int32_t index, int32_t from, int32_t to, const Around& around) {
    const Item& i = item(index);
    switch (i.kind) {
      case Kind::characters:
        return add_characters(from, i.characters, to);
      case Kind::sequence:
        return write_sequence(i.children, from, to, around);
      case Kind::alternatives:
        for (const int32_t child : i.children) write_item(child, from, to, around);
        return;
      case Kind::repeat:
        return write_repeat(i, from, to, around);
      case Kind::begin:
      case Kind::end:
        fail(ErrorKind::input,
             "{}: ^ and $ are supported at the beginning and the end of the pattern and of its "
             "alternatives",
             pattern_.place_);
    }
  }

  void write_repeat(const Item& i, int32_t from, int32_t to, const Around& around) {
    const Item& body = item(i.children[0]);
    const Bounds times = i.times;
    const bool is_long =
        times.least > kMostCopies || (times.most != kNoMost && times.most > kMostCopies);
    if (body.kind == Kind::characters && is_long) {
      if (around.counts && !overlap(body.characters, around.next)) {
        const int32_t rule = nfa_.add_counted_rule();
        const int32_t start = nfa_.rules()[static_cast<std::size_t>(rule)].start;
        add_characters(start, body.characters, start);
        return nfa_.add_call(from, {.rule = rule, .bounds = times}, to);
      }
      if (std::max(times.least, times.most == kNoMost ? 0 : times.most) > 4096) {
        fail(ErrorKind::input,
             "{}: a repetition of more than 4096 times is possible for a class of characters that "
             "nothing follows which could belong to it, and not inside of another repetition",
             pattern_.place_);
      }
    }
    const Around inside{};
    for (uint32_t n = 0; n < times.least; ++n) {
      const int32_t next = nfa_.add_node();
      write_item(i.children[0], from, next, inside);
      from = next;
    }
    if (times.most == kNoMost) {
      const int32_t loop = nfa_.add_node();
      nfa_.add_empty(from, loop);
      write_item(i.children[0], loop, loop, inside);
      return nfa_.add_empty(loop, to);
    }
    for (uint32_t n = times.least; n < times.most; ++n) {
      nfa_.add_empty(from, to);
      const int32_t next = nfa_.add_node();
      write_item(i.children[0], from, next, inside);
      from = next;
    }
    nfa_.add_empty(from, to);
  }

  void add_characters(int32_t from, const CodePointSet& set, int32_t to) {
    if (manner_.written == RegexPattern::Written::in_json) {
      add_json_characters(nfa_, from, set, to);
    } else {
      nfa_.add_characters(from, set, to);
    }
  }

  const RegexPattern& pattern_;
  RegexPattern::Manner manner_;
  Nfa& nfa_;
  std::vector<double> sizes_;
};

void RegexPattern::write(Nfa& nfa, int32_t from, Manner manner, int32_t to) const {
  const std::string outer = nfa.place();
  nfa.set_place(place_);
  RegexWriter(*this, manner, nfa).write(from, to);
  nfa.set_place(outer);
}

}  // namespace dsmoe::constrain
