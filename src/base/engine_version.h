// The version of the engine's arithmetic: two programs of one version give the same bits.
#pragma once

namespace dsmoe {

// Raised by one with every change of docs/numerics.md that changes a bit of a result. `--version`
// says it, checkpoints carry it, and CHANGELOG.md says what changed.
inline constexpr int kEngineVersion = 1;

}  // namespace dsmoe
