// A rank's parcel to itself: a copy, or nothing where it lies in its place already.
#include "comm/self.h"

#include "base/error.h"
#include "comm/parcel.h"

namespace dsmoe::comm {

void Self::move(std::string_view what, std::span<const Bytes> send, std::span<const Room> receive) {
  const std::string fault = fault_of({.sent = send[0].size(), .expected = receive[0].size()});
  DSMOE_CHECK(fault.empty(), "\"{}\": {}", what, fault);
  copy_parcel(send[0], receive[0]);
}

}  // namespace dsmoe::comm
