#!/bin/bash
# Time to the first token after a cold start, beside what dd takes for the same bytes: bench/cold_start.sh MODEL (a folder).
# The system's cache of these files is dropped before every run. ROUNDS of each, in turns; the packed image of --cache is written first if need be.
#   bench/make_quantised_model.py configs/deepseek-moe-16b.json /tmp/int4 --weights int4 && bench/cold_start.sh /tmp/int4
set -eu
model=$1
DSMOE=${DSMOE:-$(dirname "$0")/../build/dsmoe}
rounds=${ROUNDS:-3}

cold() { # FILES...
  sync "$@"
  for file in "$@"; do dd if="$file" iflag=nocache count=0 status=none; done
}
seconds() { # COMMAND...
  local start end
  start=$(date +%s.%N)
  "$@" > /dev/null
  end=$(date +%s.%N)
  awk "BEGIN { printf \"%.2f\", $end - $start }"
}
read_all() { for file in "$@"; do dd if="$file" of=/dev/null bs=1M status=none; done; }
first_token() { "$DSMOE" generate "$model" --tokens 1,2,3 --max-tokens 1 --temperature 0 --quiet "$@"; }
median() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
bytes() { stat -c %s "$@" | awk '{ s += $1 } END { printf "%.2f GB", s / 1e9 }'; }

compare() { # NAME OPTIONS -- FILES...
  local name=$1 option=$2
  shift 2
  local ours=() theirs=()
  for round in $(seq "$rounds"); do
    cold "$@"
    theirs+=("$(seconds read_all "$@")")
    cold "$@"
    ours+=("$(seconds first_token $option)")
  done
  local a b
  a=$(printf '%s\n' "${ours[@]}" | median)
  b=$(printf '%s\n' "${theirs[@]}" | median)
  echo "$name: $(bytes "$@"); first token ${ours[*]} s, dd ${theirs[*]} s; medians $a / $b = $(awk "BEGIN { printf \"%.2f\", $a / $b }")"
}

compare "from safetensors" "" "$model"/*.safetensors
first_token --cache > /dev/null
compare "from the packed image" --cache "$model"/packed-*.dsmoe
