#!/bin/bash
# Training steps and one MoE layer beside PyTorch's, where it is installed (PYTHON names the interpreter), dsmoe before and after:
#   bench/run.sh [layer|demo|hidden-512|hidden-1024]...
# BENCH: a folder with train_bench and layer_bench, to build nothing. LIMIT: seconds for each of PyTorch's variants.
# To two CPUs: THREADS=2 taskset -c 0,1 bench/run.sh. With THREADS=1 all count processor time instead of the wall's.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
threads=${THREADS:-$(lscpu -p=core | grep -v '^#' | sort -u | wc -l)}
[ $# -gt 0 ] || set -- layer demo hidden-512 hidden-1024
if [ -z "${BENCH:-}" ]; then
  BENCH=build/bench
  cmake --build build --target train_bench layer_bench > /dev/null
fi
shapes=$(mktemp -d)
trap 'rm -rf "$shapes"' EXIT

torch() { # SCRIPT ARGUMENTS...
  if "$PYTHON" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'; then
    "$PYTHON" "bench/torch/$1" "${@:2}" --threads "$threads" --limit "${LIMIT:-600}"
  else
    echo "PyTorch: not installed for $PYTHON; set PYTHON to one that has it"
  fi
}

# The demo's model made wider: experts of half the hidden size, as many heads of the same size as fit.
wider() {
  sed -E "s/(\"hidden_size\": )[0-9]+/\1$1/; s/(\"moe_intermediate_size\": )[0-9]+/\1$(($1 / 2))/;
    s/(\"intermediate_size\": )[0-9]+/\1$(($1 * 3))/; s/(\"num_(attention|key_value)_heads\": )[0-9]+/\1$(($1 / 64))/" configs/demo.json
}

step() { # NAME CONFIG ROWS
  echo "training step, $1, $3 rows of 256 tokens"
  "$BENCH/train_bench" "$2" "$threads" "$3"
  torch train_step.py "$2" --batch "$3"
  "$BENCH/train_bench" "$2" "$threads" "$3"
}

layer() {
  echo "one MoE layer forward, shape of DeepSeek-MoE-16B"
  "$BENCH/layer_bench" configs/deepseek-moe-16b.json "$threads" 512 4096
  torch moe_layer.py configs/deepseek-moe-16b.json 512 4096
  "$BENCH/layer_bench" configs/deepseek-moe-16b.json "$threads" 512 4096
}

for what in "$@"; do
  case $what in
    layer) layer ;;
    demo) step demo configs/demo.json 8 ;;
    hidden-512 | hidden-1024)
      wider "${what#hidden-}" > "$shapes/$what.json"
      step "$what" "$shapes/$what.json" $((4096 / ${what#hidden-})) ;;
    *) echo "bench/run.sh: unknown $what" >&2; exit 2 ;;
  esac
done
