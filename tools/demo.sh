#!/bin/sh
# The demo behind `make demo`: a small random model, what it is, what it computes, where tokens go.
set -eu
cd "$(dirname "$0")/.."
dsmoe=${DSMOE:-build/dsmoe}
out=${DEMO_OUT:-demo-out}
[ -x "$dsmoe" ] || { echo "make demo: $dsmoe is not built; run make build" >&2; exit 1; }

show() {
  printf '\n$ dsmoe'
  printf ' %s' "$@"
  printf '\n'
  "$dsmoe" "$@"
}

rm -rf "$out/model"
mkdir -p "$out"
show demo -o "$out/model"
show info "$out/model"
show logits "$out/model" --tokens 5,17,42,300,5
show generate "$out/model" --tokens 5,17,42 --max-tokens 12 --seed 1 --show-experts
printf '\nThe model is in %s. Its weights are random: it shows the machine, not a language.\n' "$out/model"
