#!/bin/bash
# Prompt and decoding speed of dsmoe beside llama.cpp's, on one shape, in the same minutes, in turns:
#   LLAMA=llama.cpp bench/llama/run.sh [int4|int8|bf16 LAYERS]...
# Default: int4 28 int8 28 bf16 6, layers of DeepSeek-MoE-16B's 28. THREADS, ROUNDS, REPETITIONS (of each test in one run), WORK (a folder
# with room for the GGUF files, best in memory: /dev/shm). To two CPUs: THREADS=2 taskset -c 0,1 bench/llama/run.sh.
# llama.cpp: cmake -B build -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF && cmake --build build -t llama-bench -t llama-quantize;
# or LLAMA_BENCH names the program. A round is dsmoe, then llama.cpp (no warm-up by a whole prompt); dsmoe follows the last.
# With THREADS=1 both programs count processor time instead of the wall's.
set -eu
cd "$(dirname "$0")/../.."
LLAMA_BENCH=${LLAMA_BENCH:-${LLAMA:?set LLAMA to the source of llama.cpp, built in its folder build/}/build/bin/llama-bench}
PYTHON=${PYTHON:-python3}
DSMOE=${DSMOE:-build/dsmoe}
CONFIG=${CONFIG:-configs/deepseek-moe-16b.json}
threads=${THREADS:-$(lscpu -p=core | grep -v '^#' | sort -u | wc -l)}
rounds=${ROUNDS:-3}
repetitions=${REPETITIONS:-2}
work=${WORK:-$(mktemp -d)}
runs=$(mktemp -d)
trap 'rm -rf "$runs"' EXIT
[ $# -gt 0 ] || set -- int4 28 int8 28 bf16 6

preload=
if [ "$threads" = 1 ]; then
  cc -shared -fPIC -o "$runs/cpu_clock.so" bench/llama/cpu_clock.c
  preload="$runs/cpu_clock.so"
fi

dsmoe() { # ROUND
  LD_PRELOAD=$preload "$DSMOE" bench "$CONFIG" --weights "$weights" --layers "$layers" --threads "$threads" --repetitions "$repetitions" --json > "$runs/dsmoe-$1.json"
  summary dsmoe "$runs/dsmoe-$1.json"
}
llama() { # ROUND
  LD_PRELOAD=$preload "$LLAMA_BENCH" -m "$gguf" -p 512 -n 64 -t "$threads" -r "$repetitions" --no-warmup -o json > "$runs/llama-$1.json" 2> "$runs/llama.log" ||
    { tail -5 "$runs/llama.log" >&2; exit 1; }
  summary "llama.cpp $type" "$runs/llama-$1.json"
}
summary() { "$PYTHON" bench/llama/summary.py "$1, $layers layers, $threads threads" "${@:2}"; }

while [ $# -gt 1 ]; do
  weights=$1 layers=$2
  shift 2
  case $weights in int4) type=q4_0 ;; int8) type=q8_0 ;; *) type=bf16 ;; esac
  gguf="$work/$type-$layers.gguf"
  [ -e "$gguf" ] || "$PYTHON" bench/llama/make_gguf.py "$CONFIG" "$gguf" --random --type $type --layers "$layers"
  rm -f "$runs"/*.json
  for round in $(seq "$rounds"); do
    dsmoe "$round"
    llama "$round"
  done
  dsmoe "$((rounds + 1))"
  summary "dsmoe $weights : llama.cpp $type" "$runs"/*.json
done
