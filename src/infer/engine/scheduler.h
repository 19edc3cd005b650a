// Who runs, who waits, and how many tokens of whom a step takes: numbers in, parts out. It knows no
// model, no tokens and no memory, so that tests need none.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <vector>

namespace dsmoe::infer {

// What the scheduler knows of a sequence. Whoever changes tokens or pages keeps the numbers
// current: between two steps, and in what Pages does.
struct Scheduled {
  virtual ~Scheduled() = default;

  uint64_t id = 0;
  uint64_t submission = 0;    // sequences of one submission take turns with those of others,
  uint64_t owner = 0;         // and so do those of one owner
  int64_t num_tokens = 0;     // of prompt and answer so far
  int64_t num_forwarded = 0;  // of them: their keys and values lie in pages
  int64_t num_pages = 0;      // that it holds
  bool goes_on = true;        // after its first token: someone waits for each of its steps

  // The scheduler's own.
  bool was_preempted = false;
  // When its owner, and its submission, last had a turn; when it came, if they had none since.
  uint64_t owner_turn = 0, submission_turn = 0;
};
using ScheduledList = std::list<std::unique_ptr<Scheduled>>;

// Where keys and values lie, as far as scheduling asks. A page may be held by several sequences and
// by a cache of beginnings; it is evictable when that cache alone holds it.
class Pages {
 public:
  virtual ~Pages() = default;
  virtual int64_t num_free() const = 0;
  virtual int64_t num_evictable() const = 0;
  // Frees one page that the cache alone holds. False: there is none.
  virtual bool evict_one() = 0;
  // Gives the sequence free pages for `length` tokens; so many are free.
  virtual void reserve(Scheduled& sequence, int64_t length) = 0;
  // The sequence begins to run: pages that the cache knows of its beginning may be shared with it.
  // It may end here, and is removed then.
  virtual void begin(Scheduled& sequence) = 0;
  // It has to wait again, and starts from its first token then: gives up all its pages.
  virtual void give_up(Scheduled& sequence) = 0;
};

class Scheduler {
 public:
  struct Options {
    int64_t max_batch = 16;      // sequences that run together
    int64_t chunk_tokens = 256;  // of one step: at least max_batch
    int64_t page_tokens = 64;
    // While others decode, a step reads as much of prompts as lately fitted into the longer of so
    // many seconds and so many times a step that only decodes: at least kLeastBeside tokens, at
    // most chunk_tokens.
    double patience_seconds = 0.02;
    double patience_steps = 8;
  };
  static constexpr int64_t kLeastBeside = 32;  // fewer would mostly read weights again

  struct Part {
    Scheduled* sequence = nullptr;
    int64_t num_tokens = 0;
  };

  explicit Scheduler(const Options& options);

  void add(ScheduledList newcomers);
  // It has ended: it is given back, so that its owner can do the same with its pages.
  std::unique_ptr<Scheduled> remove(const Scheduled& sequence);
  void clear();                        // all of them
  Scheduled* find(uint64_t id) const;  // nullptr: neither runs nor waits
  bool is_running(const Scheduled& sequence) const;
  const ScheduledList& running() const { return running_; }  // in the order of admission
  const ScheduledList& waiting() const { return waiting_; }
  int64_t num_preemptions() const { return num_preemptions_; }

  // Lets sequences begin that find room, and says what the next step computes: one token of each
  // that decodes, in the order of admission, then parts of prompts. Each has pages for its part.
  std::vector<Part> next_step(Pages& pages);

  // How long a step with these parts took: how much of prompts fits beside those who decode. How a
  // prompt is cut changes no bits. The sequences of the parts may be gone.
  void learn(std::span<const Part> parts, double seconds);
  int64_t tokens_beside() const { return tokens_beside_; }

 private:
  ScheduledList::iterator next_waiting();
  ScheduledList::iterator best_waiting();
  void take_turn(const Scheduled& admitted);
  int64_t pages_for(int64_t tokens) const {
    return (tokens + options_.page_tokens - 1) / options_.page_tokens;
  }
  bool fits(const Scheduled& sequence, const Pages& pages) const;
  void admit(Pages& pages);
  bool secure(Scheduled& sequence, int64_t length, Pages& pages);
  void preempt(Scheduled& sequence, Pages& pages);
  void share_among_prompts(std::span<Scheduled* const> prefilling, int64_t budget, Pages& pages,
                           std::vector<Part>& parts);

  Options options_;
  ScheduledList waiting_, running_;
  int64_t tokens_beside_;        // of prompts in a step in which others decode
  double decoding_seconds_ = 0;  // of a step that only decodes, lately
  uint64_t num_admissions_ = 0;  // the clock of turns
  int64_t num_preemptions_ = 0;
};

}  // namespace dsmoe::infer
