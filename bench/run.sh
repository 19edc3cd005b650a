#!/bin/bash
# Training steps and one MoE layer beside PyTorch's, where it is installed (PYTHON names the interpreter), in turns of a second:
#   bench/run.sh [layer|demo|hidden-512|hidden-1024]...
# BENCH: a folder with train_bench and layer_bench, to build nothing. LIMIT: seconds for each of PyTorch's variants.
# VARIANTS (of "eager compile") and TYPES (of "fp32 bf16") of PyTorch's to measure.
# To two CPUs: THREADS=2 taskset -c 0,1 bench/run.sh. With THREADS=1 all count processor time instead of the wall's.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
threads=${THREADS:-$(lscpu -p=core | grep -v '^#' | sort -u | wc -l)}
variants=${VARIANTS:-eager compile}
types=${TYPES:-fp32 bf16}
[ $# -gt 0 ] || set -- layer demo hidden-512 hidden-1024
if [ -z "${BENCH:-}" ]; then
  BENCH=build/bench
  cmake --build build --target train_bench layer_bench > /dev/null
fi
shapes=$(mktemp -d)
trap 'rm -rf "$shapes"' EXIT
turns=$shapes/turns
exec 9> "$turns"
if ! "$PYTHON" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'; then
  echo "PyTorch: not installed for $PYTHON; set PYTHON to one that has it"
  variants=none types=none
fi
preload=
if grep -q 'cpuid_fault.* amx_tile' /proc/cpuinfo; then
  preload=$shapes/amx_cpuid.so
  cc -O1 -shared -fPIC -o "$preload" bench/torch/amx_cpuid.c
fi

# Whoever has locked a file runs; this shell holds it until both have warmed up, or one has ended.
in_turns() { # OUR COMMAND... -- SCRIPT ARGUMENTS...
  local ours=()
  while [ "$1" != -- ]; do
    ours+=("$1")
    shift
  done
  shift
  [ "$variants" != none ] || { "${ours[@]}"; return; }
  flock 9
  TURNS=$turns "${ours[@]}" 9>&- &
  TURNS=$turns LD_PRELOAD=$preload "$PYTHON" "bench/torch/$@" --threads "$threads" --limit "${LIMIT:-600}" 9>&- &
  until [ "$(grep -c -- "-> FLOCK.*:$(stat -c %i "$turns") " /proc/locks)" = 2 ] || [ "$(jobs -rp | wc -l)" -lt 2 ]; do sleep 0.1; done
  flock -u 9
  wait
}

# The demo's model made wider: experts of half the hidden size, as many heads of the same size as fit.
wider() {
  sed -E "s/(\"hidden_size\": )[0-9]+/\1$1/; s/(\"moe_intermediate_size\": )[0-9]+/\1$(($1 / 2))/;
    s/(\"intermediate_size\": )[0-9]+/\1$(($1 * 3))/; s/(\"num_(attention|key_value)_heads\": )[0-9]+/\1$(($1 / 64))/" configs/demo.json
}

step() { # NAME CONFIG ROWS STEPS
  echo "training step, $1, $3 rows of 256 tokens"
  for variant in $variants; do
    for type in $types; do
      in_turns "$BENCH/train_bench" "$2" "$threads" "$3" 256 "$4" -- train_step.py "$2" --batch "$3" --steps "$4" --variants "$variant" --types "$type"
    done
  done
}

layer() {
  echo "one MoE layer forward, shape of DeepSeek-MoE-16B"
  for tokens in 512 4096; do
    for variant in $variants; do
      in_turns "$BENCH/layer_bench" configs/deepseek-moe-16b.json "$threads" $tokens -- moe_layer.py configs/deepseek-moe-16b.json $tokens --variants "$variant" --runs $((10 + 20480 / tokens))
    done
  done
}

for what in "$@"; do
  case $what in
    layer) layer ;;
    demo) step demo configs/demo.json 8 60 ;;
    hidden-512 | hidden-1024)
      wider "${what#hidden-}" > "$shapes/$what.json"
      step "$what" "$shapes/$what.json" $((4096 / ${what#hidden-})) $((8192 / ${what#hidden-})) ;;
    *) echo "bench/run.sh: unknown $what" >&2; exit 2 ;;
  esac
done
