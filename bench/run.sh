#!/bin/bash
# Training speed at the demo's shape, beside PyTorch's where it is installed (PYTHON names the interpreter).
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
threads=${THREADS:-$(lscpu -p=core | grep -v '^#' | sort -u | wc -l)}

cmake --build build --target train_bench > /dev/null
for config in configs/demo.json; do
  echo "$config, 8 rows of 256 tokens"
  build/bench/train_bench "$config" "$threads"
  if "$PYTHON" -c 'import torch' 2> /dev/null; then
    "$PYTHON" bench/train_torch.py "$config" --threads "$threads"
  else
    echo "PyTorch: not installed for $PYTHON; set PYTHON to one that has it"
  fi
done
