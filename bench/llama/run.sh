#!/bin/bash
# Prompt and decoding speed of dsmoe beside llama.cpp's, on one shape, in the same minutes, in turns:
#   LLAMA=llama.cpp bench/llama/run.sh [int4|int8|bf16 LAYERS]...
# Default: int4 28 int8 8 bf16 4, layers of DeepSeek-MoE-16B's 28. THREADS, ROUNDS, WORK (a folder with room for the GGUF files).
# llama.cpp: cmake -B build -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF && cmake --build build -t llama-bench -t llama-quantize
# With THREADS=1 both programs count processor time instead of the wall's.
set -eu
cd "$(dirname "$0")/../.."
: "${LLAMA:?set LLAMA to the source of llama.cpp, built in its folder build/}"
PYTHON=${PYTHON:-python3}
DSMOE=${DSMOE:-build/dsmoe}
CONFIG=${CONFIG:-configs/deepseek-moe-16b.json}
threads=${THREADS:-$(lscpu -p=core | grep -v '^#' | sort -u | wc -l)}
rounds=${ROUNDS:-3}
work=${WORK:-$(mktemp -d)}
[ $# -gt 0 ] || set -- int4 28 int8 8 bf16 4

preload=
if [ "$threads" = 1 ]; then
  cc -shared -fPIC -o "$work/cpu_clock.so" bench/llama/cpu_clock.c
  preload="$work/cpu_clock.so"
fi

while [ $# -gt 1 ]; do
  weights=$1 layers=$2
  shift 2
  case $weights in int4) type=q4_0 ;; int8) type=q8_0 ;; *) type=bf16 ;; esac
  gguf="$work/$type-$layers.gguf"
  [ -e "$gguf" ] || "$PYTHON" bench/llama/make_gguf.py "$CONFIG" "$gguf" --random --type $type --layers "$layers"
  for round in $(seq "$rounds"); do
    LD_PRELOAD=$preload "$LLAMA/build/bin/llama-bench" -m "$gguf" -p 512 -n 64 -t "$threads" -r 1 -o json > "$work/llama-$round.json" 2> "$work/llama.log"
    LD_PRELOAD=$preload "$DSMOE" bench "$CONFIG" --weights "$weights" --layers "$layers" --threads "$threads" --repetitions 1 \
      --no-limits --json > "$work/dsmoe-$round.json"
  done
  "$PYTHON" - "$work" "$rounds" "$weights" "$type" "$layers" "$threads" << 'END'
import json, statistics, sys
work, rounds, weights, kind, layers, threads = sys.argv[1:]
load = lambda name: [json.load(open(f"{work}/{name}-{i + 1}.json")) for i in range(int(rounds))]
theirs = {test: [e["avg_ts"] for run in load("llama") for e in run if e[key] > 0] for test, key in (("pp512", "n_prompt"), ("tg64", "n_gen"))}
ours = {test: [e["tokens_per_second"] for run in load("dsmoe") for e in run["results"] if e["test"] == name] for test, name in (("pp512", "prompt"), ("tg64", "generate"))}
for test in ("pp512", "tg64"):
    a, b = ours[test], theirs[test]
    ratio = statistics.median(x / y for x, y in zip(a, b))
    show = lambda v: f"{statistics.median(v):8.2f} ({min(v):.2f} to {max(v):.2f})"
    print(f"{layers} layers, {threads} threads, {test}: dsmoe {weights} {show(a)}, llama.cpp {kind} {show(b)} tokens/s: {ratio:.2f} x", flush=True)
END
done
