#!/bin/bash
# Perplexity of a trained model in bf16, int8, int4 beside llama.cpp's BF16, Q8_0, Q4_0 of the same weights, on the same token ids:
#   LLAMA=llama.cpp bench/llama/quality.sh MODEL [DOCUMENTS]
# LLAMA: its source with a static build in build/ (llama.cpp's -DBUILD_SHARED_LIBS=OFF).
# MODEL has a tokenizer; the text is held-out documents of the built-in corpus, or JSON lines of ids named by IDS.
set -eu
cd "$(dirname "$0")/../.."
: "${LLAMA:?set LLAMA to the source of llama.cpp, built in its folder build/}"
PYTHON=${PYTHON:-python3}
DSMOE=${DSMOE:-build/dsmoe}
model=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

ids=${IDS:-$work/ids.jsonl}
if [ -z "${IDS:-}" ]; then
  cmake --build build --target demo_ids > /dev/null
  build/bench/demo_ids "$model" "${2:-400}" > "$ids"
fi
libraries=$(for name in llama ggml ggml-cpu ggml-base; do find "$LLAMA/build" -name "lib$name.a"; done)
# shellcheck disable=SC2086  # one word per library
g++ -O2 -std=c++17 -I"$LLAMA/include" -I"$LLAMA/ggml/include" bench/llama/score.cc $libraries -fopenmp -ldl -o "$work/score"
"$PYTHON" bench/llama/make_gguf.py "$model" "$work/bf16.gguf"
for type in Q8_0 Q4_0; do "$LLAMA/build/bin/llama-quantize" "$work/bf16.gguf" "$work/$type.gguf" $type > "$work/quantize.log" 2>&1; done
for type in int8 int4; do "$DSMOE" quantize "$model" --to $type -o "$work/$type" --no-compare --quiet > /dev/null; done

ours() { # NAME FOLDER
  "$DSMOE" eval "$2" --pairs "$ids" --json --quiet --threads 1 | "$PYTHON" -c '
import json, math, sys
lines = [json.loads(line) for line in sys.stdin]
tokens = sum(line["tokens"] for line in lines)
mean = -sum(line["loglikelihood"] for line in lines) / tokens
print(f"dsmoe     {sys.argv[1]:5} {tokens} tokens, {mean:.6f} nats per token, perplexity {math.exp(mean):.5f}")' "$1"
}
ours bf16 "$model"
ours int8 "$work/int8"
ours int4 "$work/int4"
for type in bf16 Q8_0 Q4_0; do printf 'llama.cpp %-5s %s\n' $type "$("$work/score" "$work/$type.gguf" "$ids")"; done
