#!/bin/bash
# Training steps and one MoE layer beside PyTorch's, where it is installed (PYTHON names the interpreter): bench/run.sh [train|layer]
# With THREADS=1 all count processor time instead of the wall's.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
threads=${THREADS:-$(lscpu -p=core | grep -v '^#' | sort -u | wc -l)}
what=${1:-train layer}
shapes=$(mktemp -d)
trap 'rm -rf "$shapes"' EXIT

torch() {
  if "$PYTHON" -c 'import torch' 2> /dev/null; then
    "$PYTHON" "bench/torch/$@" --threads "$threads"
  else
    echo "PyTorch: not installed for $PYTHON; set PYTHON to one that has it"
  fi
}

# The demo's model made wider: experts of half the hidden size, as many heads of the same size as fit.
wider() {
  sed -E "s/(\"hidden_size\": )[0-9]+/\1$1/; s/(\"moe_intermediate_size\": )[0-9]+/\1$(($1 / 2))/;
    s/(\"intermediate_size\": )[0-9]+/\1$(($1 * 3))/; s/(\"num_(attention|key_value)_heads\": )[0-9]+/\1$(($1 / 64))/" configs/demo.json
}

if [[ $what == *train* ]]; then
  cmake --build build --target train_bench > /dev/null
  cp configs/demo.json "$shapes/demo.json"
  wider 512 > "$shapes/hidden-512.json"
  wider 1024 > "$shapes/hidden-1024.json"
  for shape in demo:8 hidden-512:8 hidden-1024:4; do
    config=$shapes/${shape%:*}.json batch=${shape#*:}
    echo "training step, ${shape%:*}, $batch rows of 256 tokens"
    build/bench/train_bench "$config" "$threads" "$batch"
    torch train_step.py "$config" --batch "$batch"
  done
fi

if [[ $what == *layer* ]]; then
  cmake --build build --target layer_bench > /dev/null
  echo "one MoE layer forward, shape of DeepSeek-MoE-16B"
  build/bench/layer_bench configs/deepseek-moe-16b.json "$threads" 512 4096
  torch moe_layer.py configs/deepseek-moe-16b.json 512 4096
fi
