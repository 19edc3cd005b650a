// Decoding goes first, prompts share what a step has left; turns by owner and submission.
#include "infer/engine/scheduler.h"

#include <algorithm>
#include <map>
#include <new>
#include <tuple>
#include <utility>

namespace dsmoe::infer {
namespace {

int64_t pending(const Scheduled& sequence) { return sequence.num_tokens - sequence.num_forwarded; }

ScheduledList::const_iterator place_in(const ScheduledList& list, const Scheduled& sequence) {
  return std::find_if(list.begin(), list.end(),
                      [&](const auto& other) { return other.get() == &sequence; });
}

}  // namespace

Scheduler::Scheduler(const Options& options)
    : options_(options), tokens_beside_(std::min(kLeastBeside, options.chunk_tokens)) {}

void Scheduler::add(ScheduledList newcomers) {
  for (const auto& newcomer : newcomers) {
    newcomer->owner_turn = newcomer->submission_turn = num_admissions_;
  }
  waiting_.splice(waiting_.end(), newcomers);
}

std::unique_ptr<Scheduled> Scheduler::remove(const Scheduled& sequence) {
  for (ScheduledList* list : {&running_, &waiting_}) {
    const auto at = place_in(*list, sequence);
    if (at == list->end()) continue;
    const auto place = list->erase(at, at);  // the same, to be changed
    std::unique_ptr<Scheduled> removed = std::move(*place);
    list->erase(place);
    return removed;
  }
  return nullptr;
}

void Scheduler::clear() {
  running_.clear();
  waiting_.clear();
}

Scheduled* Scheduler::find(uint64_t id) const {
  for (const ScheduledList* list : {&running_, &waiting_}) {
    for (const auto& sequence : *list) {
      if (sequence->id == id) return sequence.get();
    }
  }
  return nullptr;
}

bool Scheduler::is_running(const Scheduled& sequence) const {
  return place_in(running_, sequence) != running_.end();
}

// Sequences that already ran; then the owner with the fewest running sequences, of several the one
// whose turn is longest ago; of its submissions the same; then the order of arrival. A turn ages
// while others have theirs, so nobody waits for ever.
ScheduledList::iterator Scheduler::best_waiting() {
  if (waiting_.front()->was_preempted) return waiting_.begin();
  std::map<uint64_t, int64_t> running_of_owner, running_of_submission;
  for (const auto& sequence : running_) {
    ++running_of_owner[sequence->owner];
    ++running_of_submission[sequence->submission];
  }
  const auto rank = [&](const std::unique_ptr<Scheduled>& s) {
    return std::tuple(running_of_owner[s->owner], s->owner_turn,
                      running_of_submission[s->submission], s->submission_turn);
  };
  return std::min_element(waiting_.begin(), waiting_.end(),
                          [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
}

ScheduledList::iterator Scheduler::next_waiting() {
  try {
    return best_waiting();
  } catch (const std::bad_alloc&) {
    return waiting_.begin();  // without memory to count with: the order of arrival
  }
}

void Scheduler::take_turn(const Scheduled& admitted) {
  ++num_admissions_;
  for (const auto& waiting : waiting_) {
    if (waiting->owner == admitted.owner) waiting->owner_turn = num_admissions_;
    if (waiting->submission == admitted.submission) waiting->submission_turn = num_admissions_;
  }
}

// Pages for all that is known of the sequence, beyond what running ones still need for theirs.
bool Scheduler::fits(const Scheduled& sequence, const Pages& pages) const {
  const auto missing = [&](const Scheduled& s) {
    return pages_for(s.num_tokens + 1) - s.num_pages;
  };
  int64_t promised = 0;
  for (const auto& other : running_) promised += std::max<int64_t>(0, missing(*other));
  return pages.num_free() + pages.num_evictable() - promised >= missing(sequence);
}

void Scheduler::admit(Pages& pages) {
  while (!waiting_.empty() && static_cast<int64_t>(running_.size()) < options_.max_batch) {
    const auto next = next_waiting();
    if (!running_.empty() && !fits(**next, pages)) return;
    running_.splice(running_.end(), waiting_, next);
    Scheduled& sequence = *running_.back();
    take_turn(sequence);
    pages.begin(sequence);
  }
}

void Scheduler::preempt(Scheduled& sequence, Pages& pages) {
  pages.give_up(sequence);
  sequence.was_preempted = true;
  ++num_preemptions_;
  waiting_.splice(waiting_.begin(), running_, place_in(running_, sequence));
}

// Pages up to `length`: free ones, then what only the cache holds, then those of the sequences
// admitted last, which start again later (to the same bits). The first admitted never waits, and
// the pool holds one context: so there is always progress. False: this one had to go.
bool Scheduler::secure(Scheduled& sequence, int64_t length, Pages& pages) {
  const int64_t missing = pages_for(length) - sequence.num_pages;
  while (pages.num_free() < missing) {
    if (pages.evict_one()) continue;
    Scheduled& last = *running_.back();
    preempt(last, pages);
    if (&last == &sequence) return false;
  }
  pages.reserve(sequence, length);
  return true;
}

std::vector<Scheduler::Part> Scheduler::next_step(Pages& pages) {
  admit(pages);
  std::vector<Scheduled*> decoding, prefilling;
  for (const auto& sequence : running_) {
    (pending(*sequence) == 1 ? decoding : prefilling).push_back(sequence.get());
  }
  std::vector<Part> parts;
  // Rows of one token each come first: their logits are one product.
  for (Scheduled* sequence : decoding) {
    if (!is_running(*sequence) || !secure(*sequence, sequence->num_forwarded + 1, pages)) continue;
    parts.push_back({sequence, 1});
  }
  // Whoever will decode after this step waits for all of it, like those who do.
  const bool someone_waits =
      !parts.empty() || std::any_of(prefilling.begin(), prefilling.end(), [&](const Scheduled* s) {
        return pending(*s) <= tokens_beside_ && s->goes_on;
      });
  const int64_t left = options_.chunk_tokens - static_cast<int64_t>(parts.size());
  share_among_prompts(prefilling, someone_waits ? std::min(left, tokens_beside_) : left, pages,
                      parts);
  std::erase_if(parts, [&](const Part& part) { return !is_running(*part.sequence); });
  return parts;
}

// The oldest gets a quarter, so that nobody waits for ever; the rest goes to those who need least,
// so that a short prompt behind a long one is soon read.
void Scheduler::share_among_prompts(std::span<Scheduled* const> prefilling, int64_t budget,
                                    Pages& pages, std::vector<Part>& parts) {
  if (prefilling.empty()) return;
  std::vector<Part> shares;
  for (Scheduled* sequence : prefilling) shares.push_back({sequence, 0});
  const auto give = [&](Part& share, int64_t most) {
    const int64_t given = std::min({pending(*share.sequence) - share.num_tokens, most, budget});
    share.num_tokens += given;
    budget -= given;
  };
  give(shares.front(), std::max<int64_t>(1, budget / 4));
  std::stable_sort(shares.begin(), shares.end(), [](const Part& a, const Part& b) {
    return pending(*a.sequence) < pending(*b.sequence);
  });
  for (Part& share : shares) give(share, budget);
  for (const Part& share : shares) {
    if (share.num_tokens == 0 || !is_running(*share.sequence)) continue;
    if (secure(*share.sequence, share.sequence->num_forwarded + share.num_tokens, pages)) {
      parts.push_back(share);
    }
  }
}

void Scheduler::learn(std::span<const Part> parts, double seconds) {
  int64_t num_prompt = 0, num_decoding = 0;
  for (const Part& part : parts) {
    (part.num_tokens > 1 ? num_prompt : num_decoding) += part.num_tokens;
  }
  // One that was held up says nothing about the next: up slowly, down at once.
  if (num_prompt == 0) {
    decoding_seconds_ =
        decoding_seconds_ > 0 ? std::min(seconds, 1.05 * decoding_seconds_) : seconds;
  }
  if (num_decoding == 0 || 2 * num_prompt < tokens_beside_) return;  // says little
  const double patience =
      std::max(options_.patience_seconds, options_.patience_steps * decoding_seconds_);
  const double fitting = static_cast<double>(num_prompt) * patience / std::max(seconds, 1e-6);
  const int64_t most = options_.chunk_tokens;
  tokens_beside_ = static_cast<int64_t>(std::clamp(
      fitting, static_cast<double>(std::min(kLeastBeside, most)), static_cast<double>(most)));
}

}  // namespace dsmoe::infer
