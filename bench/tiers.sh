#!/bin/bash
# The same bytes from every tier this CPU has: 20 training steps, and logits of the model and of its int8 and int4 versions.
#   bench/tiers.sh
# DSMOE: the program (build/dsmoe). THREADS: of each run (1); tiers run side by side. TIERS: which ("v3 v4 v4_bf16 amx").
# Ends with 1 where files differ, or where another seed gives the same weights.
set -eu
cd "$(dirname "$0")/.."
dsmoe=$(realpath "${DSMOE:-build/dsmoe}")
threads=${THREADS:-1}
read -ra tiers <<< "${TIERS:-v3 v4 v4_bf16 amx}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

demo() { # TIER SEED FOLDER
  DSMOE_ISA=$1 "$dsmoe" demo --steps 20 --seed "$2" -q --threads "$threads" -o "$3" > "$3.log" 2>&1 || { cat "$3.log"; return 1; }
}
all_ended() { for job in $(jobs -p); do wait "$job"; done; }

for tier in "${tiers[@]}"; do demo "$tier" 1 "$tier" & done
demo "${tiers[0]}" 2 other &
all_ended
first=${tiers[0]}
model=$first/step-00000020
for type in int8 int4; do "$dsmoe" quantize "$model" --to $type -o $type -q --no-compare > /dev/null; done
ids=$(seq -s , 20 219)
for tier in "${tiers[@]}"; do
  for stored in "$model" int8 int4; do
    DSMOE_ISA=$tier "$dsmoe" logits "$stored" --tokens "$ids" -q --threads "$threads" -o "$tier.$(basename "$stored").logits" &
  done
done
all_ended

differ=0
same() { # A B
  if cmp -s "$1" "$2"; then echo "same: $2, $(stat -c %s "$2") bytes"; else echo "DIFFERENT: $1 $2"; differ=1; fi
}
for tier in "${tiers[@]:1}"; do
  same "$model/model.safetensors" "$tier/step-00000020/model.safetensors"
  same "$model/train_state.safetensors" "$tier/step-00000020/train_state.safetensors"
  for stored in step-00000020 int8 int4; do same "$first.$stored.logits" "$tier.$stored.logits"; done
done
if cmp -s "$model/model.safetensors" other/step-00000020/model.safetensors; then
  echo "another seed gave the same weights: the comparison shows nothing"
  differ=1
fi
exit $differ
