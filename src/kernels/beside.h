// Beside: ops whose results are wanted late, in a second queue of the device. They fill what the
// others leave idle: the ends of launches, and the matrix units while memory is busy.
#pragma once

#include <cstdint>
#include <utility>

#include "kernels/context.h"

namespace dsmoe::kernels {

// One piece of work: the handle with which others wait for it.
struct BesideWork {
  int64_t piece = 0;  // of its stream, from 1 on; 0: nothing to wait for
};

// A table whose device has such a queue has these; in others all are absent.
struct BesideOps {
  void* (*begin)(const Context&) = nullptr;  // the stream of a piece's ops
  BesideWork (*end)(const Context&) = nullptr;
  void (*wait)(const Context&, BesideWork) = nullptr;
};

bool runs_beside(const Context& context);
// The context for a piece's ops, until end_beside; `context` itself where nothing runs beside.
Context begin_beside(const Context& context);
BesideWork end_beside(const Context& context);

// `body` calls ops of the context it gets: one piece of work. It sees all that was issued in
// `context` before; it does not wait for what is issued there later, nor does that wait for it.
// Pieces run one after the other: who waits for one waits for those before it.
template <class Body>
BesideWork run_beside(const Context& context, Body&& body) {
  std::forward<Body>(body)(begin_beside(context));
  return end_beside(context);
}

// Whatever follows in `context` waits until the work is done. Whoever writes over what a piece
// reads, or reads what it writes, calls this first.
void wait_beside(const Context& context, BesideWork work);

}  // namespace dsmoe::kernels
