// Depth first over the steps; the behaviours that join neighbours collect the matches of one piece
// first.
#include "text/tokenizer/pre_tokenizer.h"

#include <algorithm>

namespace dsmoe::text {

struct PreTokenizer::Run {
  Scratch& scratch;
  PieceSink& sink;
};

namespace {

using Pieces = std::vector<std::pair<Span, bool>>;

// Joins runs of matches with each other, and runs of the rest with each other.
void join_contiguous(Pieces& pieces) {
  std::size_t kept = 0;
  bool previous = false;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto [span, is_match] = pieces[i];  // a copy: its place may be written below
    if (is_match == previous && kept > 0) {
      pieces[kept - 1].first.end = span.end;
    } else {
      pieces[kept++] = {span, false};
    }
    previous = is_match;
  }
  pieces.resize(kept);
}

// A match goes to the piece before it, unless that is a match too.
void join_with_previous(Pieces& pieces) {
  std::size_t kept = 0;
  bool previous = false;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto [span, is_match] = pieces[i];  // a copy: its place may be written below
    if (is_match && !previous && kept > 0) {
      pieces[kept - 1].first.end = span.end;
    } else {
      pieces[kept++] = {span, false};
    }
    previous = is_match;
  }
  pieces.resize(kept);
}

// The mirror image, from the right.
void join_with_next(Pieces& pieces) {
  std::size_t kept = pieces.size();
  bool previous = false;
  for (std::size_t i = pieces.size(); i-- > 0;) {
    const auto [span, is_match] = pieces[i];
    if (is_match && !previous && kept < pieces.size()) {
      pieces[kept].first.begin = span.begin;
    } else {
      pieces[--kept] = {span, false};
    }
    previous = is_match;
  }
  pieces.erase(pieces.begin(), pieces.begin() + static_cast<std::ptrdiff_t>(kept));
}

}  // namespace

void PreTokenizer::run(std::string_view text, PieceStart start, Scratch& scratch,
                       PieceSink& sink) const {
  if (scratch.levels.size() < steps_.size()) scratch.levels.resize(steps_.size());
  Run state{.scratch = scratch, .sink = sink};
  if (!text.empty()) run_step(0, text, start, state);
}

void PreTokenizer::run_step(std::size_t step_idx, std::string_view text, PieceStart start,
                            Run& run) const {
  if (step_idx == steps_.size()) {
    run.sink.piece(text);
    return;
  }
  const PreTokenizerStep& step = steps_[step_idx];
  if (const auto* split_step = std::get_if<SplitStep>(&step)) {
    const bool joins = split_step->behavior != SplitBehavior::isolated &&
                       split_step->behavior != SplitBehavior::removed;
    if (joins) {
      split_merged(*split_step, step_idx, text, start, run);
    } else {
      split(*split_step, step_idx, text, start, run);
    }
  } else if (const auto* meta = std::get_if<MetaspaceStep>(&step)) {
    metaspace(*meta, step_idx, text, start, run);
  } else if (text.front() == ' ' || start.is_continuation) {
    run_step(step_idx + 1, text, start, run);
  } else {
    std::string& prefixed = run.scratch.levels[step_idx].text;
    prefixed.clear();
    prefixed.push_back(' ');
    prefixed.append(text);
    if (start.num_first > 0) ++start.num_first;
    run_step(step_idx + 1, prefixed, start, run);
  }
}

void PreTokenizer::split(const SplitStep& step, std::size_t step_idx, std::string_view text,
                         PieceStart start, Run& run) const {
  const auto emit = [&](Span span, bool is_match) {
    const bool drop = step.behavior == SplitBehavior::removed && is_match != step.invert;
    if (span.empty() || drop) return;
    run_step(step_idx + 1, text.substr(span.begin, span.end - span.begin),
             start_of_part(start, span.begin), run);
  };
  MatchIterator matches(step.pattern, text, run.scratch.regex);
  std::size_t done = 0;
  for (Span match; matches.next(match);) {
    emit({.begin = done, .end = match.begin}, false);
    emit(match, true);
    done = match.end;
  }
  emit({.begin = done, .end = text.size()}, false);
}

void PreTokenizer::split_merged(const SplitStep& step, std::size_t step_idx, std::string_view text,
                                PieceStart start, Run& run) const {
  Pieces& pieces = run.scratch.levels[step_idx].matches;
  pieces.clear();
  MatchIterator matches(step.pattern, text, run.scratch.regex);
  std::size_t done = 0;
  for (Span match; matches.next(match);) {
    if (done != match.begin) pieces.push_back({{.begin = done, .end = match.begin}, step.invert});
    pieces.push_back({match, !step.invert});
    done = match.end;
  }
  if (done != text.size()) pieces.push_back({{.begin = done, .end = text.size()}, step.invert});

  if (step.behavior == SplitBehavior::contiguous) {
    join_contiguous(pieces);
  } else if (step.behavior == SplitBehavior::merged_with_previous) {
    join_with_previous(pieces);
  } else {
    join_with_next(pieces);
  }
  for (const auto& [span, unused] : pieces) {
    if (span.empty()) continue;
    run_step(step_idx + 1, text.substr(span.begin, span.end - span.begin),
             start_of_part(start, span.begin), run);
  }
}

void PreTokenizer::metaspace(const MetaspaceStep& step, std::size_t step_idx, std::string_view text,
                             PieceStart start, Run& run) const {
  std::string& spaced = run.scratch.levels[step_idx].text;
  spaced.clear();
  const bool wants_prefix =
      !start.is_continuation && (step.scheme == PrependScheme::always ||
                                 (step.scheme == PrependScheme::first && start.num_first > 0));
  const bool has_prefix =
      text.front() == ' ' || text.substr(0, step.replacement.size()) == step.replacement;
  if (wants_prefix && !has_prefix) spaced.append(step.replacement);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t space = std::min(text.find(' ', at), text.size());
    spaced.append(text.substr(at, space - at));
    if (space < text.size()) spaced.append(step.replacement);
    at = space + 1;
  }
  if (start.num_first > 0) {
    const auto spaces = std::count(text.begin(), text.begin() + start.num_first, ' ');
    start.num_first += (wants_prefix && !has_prefix ? step.replacement.size() : 0) +
                       static_cast<std::size_t>(spaces) * (step.replacement.size() - 1);
  }
  if (!step.split) {
    run_step(step_idx + 1, spaced, start, run);
    return;
  }
  // Every replacement character starts a piece.
  const std::string_view view = spaced;
  std::size_t begin = 0;
  for (std::size_t cut = view.find(step.replacement);; cut = view.find(step.replacement, cut + 1)) {
    const Span span{.begin = begin, .end = std::min(cut, view.size())};
    if (!span.empty()) {
      run_step(step_idx + 1, view.substr(span.begin, span.end - span.begin),
               start_of_part(start, span.begin), run);
    }
    if (cut == std::string_view::npos) break;
    begin = cut;
  }
}

}  // namespace dsmoe::text
