// Beside: ops whose results are wanted late, in a second queue of the device. They fill what the
// others leave idle: the ends of launches, and the matrix units while memory is busy.
#pragma once

#include <utility>

#include "kernels/context.h"

namespace dsmoe::kernels {

// Of a table whose device has such a queue; all absent where it has none.
struct BesideOps {
  void* (*begin)(const Context&) = nullptr;  // the stream of a piece's ops
  void (*end)(const Context&) = nullptr;
  void (*wait)(const Context&, int pieces) = nullptr;
};

bool runs_beside(const Context& context);
// The context for a piece's ops, until end_beside; `context` itself where nothing runs beside.
Context begin_beside(const Context& context);
void end_beside(const Context& context);

// `body` calls ops of the context it gets: one piece of work. It sees all that was issued in
// `context` before; it does not wait for what is issued there later, nor does that wait for it.
// Pieces run one after the other.
template <class Body>
void run_beside(const Context& context, Body&& body) {
  std::forward<Body>(body)(begin_beside(context));
  end_beside(context);
}

// Whatever follows in `context` waits until at most so many pieces are unfinished: by whoever
// writes over what a piece reads, or reads what it writes.
void wait_beside(const Context& context, int pieces);

}  // namespace dsmoe::kernels
