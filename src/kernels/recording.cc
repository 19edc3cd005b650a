// Recording through the table's functions.
#include "kernels/recording.h"

#include "kernels/table.h"

namespace dsmoe::kernels {

bool Recording::possible(const Context& context) {
  // A default stream cannot be recorded.
  return context.table->recording.begin != nullptr && context.stream != nullptr;
}

Recording::Recording(const Context& context, FunctionRef<void()> body) : context_(context) {
  const RecordingOps& ops = context.table->recording;
  ops.begin(context);
  try {
    body();
  } catch (...) {
    if (void* partial = ops.end(context)) ops.release(partial);
    throw;
  }
  recording_ = ops.end(context);
  DSMOE_CHECK(recording_ != nullptr, "the ops could not be recorded on {}", context.table->name);
}

Recording::~Recording() {
  if (recording_ != nullptr) context_.table->recording.release(recording_);
}

void Recording::replay() const { context_.table->recording.replay(context_, recording_); }

}  // namespace dsmoe::kernels
