#!/bin/sh
# The demo behind `make demo`: trains a small model on the built-in corpus, then shows and asks it.
# DEMO_STEPS=200 is sooner done and learns less; DEMO_OUT names the folder.
set -eu
cd "$(dirname "$0")/.."
dsmoe=${DSMOE:-build/dsmoe}
out=${DEMO_OUT:-demo-out}
[ -x "$dsmoe" ] || { echo "make demo: $dsmoe is not built; run make build" >&2; exit 1; }

show() {
  printf '\n$ dsmoe'
  for word in "$@"; do
    case $word in *[!A-Za-z0-9_./-]*) printf ' "%s"' "$word" ;; *) printf ' %s' "$word" ;; esac
  done
  printf '\n'
  "$dsmoe" "$@"
}

# A finished or stopped run of an earlier demo goes on: the second time only the figures are made again.
if [ -n "${DEMO_STEPS:-}" ]; then
  show demo -o "$out" --resume --steps "$DEMO_STEPS"
else
  show demo -o "$out" --resume
fi
model=$(ls -d "$out"/step-* | tail -n 1)
show info "$model"
show generate "$model" -p "Add 27 + 45:" --temperature 0 --max-tokens 60
show generate "$model" -p "Once upon a time" --max-tokens 30 --seed 1 --show-experts
serve="$dsmoe serve"
[ "$out" = demo-out ] || serve="$serve $out"
printf '\nThe model is in %s. To talk to it and watch its experts in a browser:\n  %s\n' "$model" "$serve"
# Only a person at a terminal is asked: a build machine has no one to answer.
if [ -t 0 ] && [ -t 1 ] && [ -z "${CI:-}" ]; then
  printf 'Serve it now? [y/N] '
  read -r answer || answer=
  case $answer in [yY]*) exec "$dsmoe" serve "$out" ;; esac
fi
