// How many threads of a pool find a CPU, judged by how long they waited for one.
#pragma once

namespace dsmoe {

// On a machine that others use too, a thread that waits for a CPU holds up all others at the end
// of every op. Fewer threads are faster there. Numbers in, a number out: the pool measures.
class FairShare {
 public:
  explicit FairShare(int most);

  int threads() const { return now_; }

  // After so many seconds of runs there is something to note: less while more threads are tried.
  double next_look() const;
  // After runs of `seconds` in which the threads waited `delayed` seconds for a CPU, all together.
  void note(double seconds, double delayed);

 private:
  void reduce(double lost);

  int most_, now_;
  int step_ = 1;     // how many more the next attempt takes
  double patience_;  // seconds of runs from a failure to the next attempt
  double since_change_;
  bool was_bad_ = false;  // the last look
};

}  // namespace dsmoe
