// Recording: a sequence of ops kept by the device and run again as one piece, without their launch
// costs.
#pragma once

#include "base/function_ref.h"
#include "kernels/context.h"

namespace dsmoe::kernels {

// A table whose device can record (CUDA graphs) has these; in others all are absent.
struct RecordingOps {
  void (*begin)(const Context&) = nullptr;
  void* (*end)(const Context&) = nullptr;  // never throws; null when the recording is spoilt
  void (*replay)(const Context&, void* recording) = nullptr;
  void (*release)(void* recording) = nullptr;
};

// The ops keep the addresses and sizes they were recorded with: what varies from one run to the
// next lies in memory that is written before a replay. Bits are those of the ops run one by one.
class Recording {
 public:
  // False: run the ops instead.
  static bool possible(const Context& context);

  // `body` calls ops of this context, and neither upload nor download; they are recorded, not run.
  Recording(const Context& context, FunctionRef<void()> body);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  // Ordered with the ops of the context; returns before the work is done.
  void replay() const;

 private:
  Context context_;
  void* recording_ = nullptr;
};

}  // namespace dsmoe::kernels
