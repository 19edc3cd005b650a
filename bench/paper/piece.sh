#!/bin/bash
# One piece of docs/paper-comparison.md on a machine that is there for minutes and keeps nothing; runs.py does the work.
#   piece.sh pack PROGRAM DATA TOKENIZER RESULTS OUT   here: OUT/1 and OUT/2, two loads of about 55 MB
#   piece.sh unpack LOAD ROOT                          there, for each load
#   piece.sh begin ROOT SECONDS [options of runs.py]   there: starts in the background
#   piece.sh wait ROOT SECONDS OUT                     there: until done or so many seconds; OUT gets progress.txt and results.tar
# Unpacked beside the repository's own bench/paper/results, results.tar brings what the next `pack` takes along.
set -euo pipefail
here=$(cd "$(dirname "$0")/../.." && pwd)
loads=("books-train-1 books-train-2 techdocs-train peps-train books-valid gov-valid multilingual-valid techdocs-valid novels-valid peps-valid"
  "novels-train gov-train multilingual-train")

pack() { # PROGRAM DATA TOKENIZER RESULTS OUT
  for i in 0 1; do
    mkdir -p "$5/$((i + 1))/data"
    for name in ${loads[i]}; do
      found=$(find -L "$2" -name "$name.txt.zst" -print -quit)
      [ -n "$found" ] || { echo "no $name.txt.zst under $2" >&2; exit 1; }
      cp -L "$found" "$5/$((i + 1))/data/"
    done
  done
  local load=$5/1
  strip -o "$load/dsmoe" "$1"
  xz -9e -f "$load/dsmoe"
  # Libraries that another system may lack or have in another version.
  mkdir -p "$load/lib" "$load/configs" "$load/bench/paper"
  ldd "$1" | awk '/libfmt|libpcre2|libzstd/ {print $3}' | xargs -I{} cp -L {} "$load/lib/"
  cp "$here"/configs/compare-67m.json "$here"/configs/compare-330m.json "$load/configs/"
  cp "$here"/bench/paper/runs.py "$here"/bench/paper/piece.sh "$load/bench/paper/"
  cp -r "$3" "$load/tokenizer"
  if [ -d "$4" ]; then cp -r "$4" "$load/results"; fi
  du -cbs "$5/1" "$5/2"
}

unpack() { # LOAD ROOT
  mkdir -p "$2"
  cp -r "$1"/. "$2"/
  chmod -R u+w "$2"
  if [ -f "$2/dsmoe.xz" ]; then
    python3 -c 'import lzma, sys; open(sys.argv[2], "wb").write(lzma.open(sys.argv[1]).read())' "$2/dsmoe.xz" "$2/dsmoe"
    rm "$2/dsmoe.xz"
    chmod +x "$2/dsmoe"
  fi
  LD_LIBRARY_PATH=$(libraries "$2") "$2/dsmoe" --version
}

# The machine's own search path, where drivers may lie, and behind it the libraries that were brought, if any is missing.
libraries() { # ROOT
  local path=${LD_LIBRARY_PATH:-}
  if ldd "$1/dsmoe" | grep -q 'not found'; then path=${path:+$path:}$1/lib; fi
  echo "$path"
}

# Runs lie in memory where there is room for one of the larger size beside the token shards.
work_folder() { # ROOT
  local free
  free=$(df -BG --output=avail /dev/shm 2>/dev/null | tail -1 | tr -dc 0-9)
  if [ "${free:-0}" -ge 12 ]; then echo /dev/shm/paper-runs; else echo "$1/work"; fi
}

begin() { # ROOT SECONDS ...
  local root=$1 seconds=$2
  shift 2
  rm -f "$root/done"
  cd "$root"
  LD_LIBRARY_PATH=$(libraries "$root") setsid bash -c 'python3 bench/paper/runs.py "$@" > progress.txt 2>&1; echo "exit $?" >> progress.txt; touch done' \
    runs --program "$root/dsmoe" --data data --tokenizer tokenizer --results results --work "$(work_folder "$root")" --seconds "$seconds" "$@" \
    < /dev/null > /dev/null 2>&1 &
}

wait_for() { # ROOT SECONDS OUT
  local end=$((SECONDS + $2))
  while [ ! -f "$1/done" ] && [ $SECONDS -lt $end ]; do sleep 2; done
  cp "$1/progress.txt" "$3/"
  tar -C "$1" -cf "$3/results.tar" results
  tail -n 30 "$1/progress.txt"
  tail -c 2000 "$(work_folder "$1")/log.txt" 2>/dev/null | tr '\r' '\n' | tail -n 3 || true
}

verb=${1:-}
shift || true
case $verb in
  pack) pack "$@" ;;
  unpack) unpack "$@" ;;
  begin) begin "$@" ;;
  wait) wait_for "$@" ;;
  *) sed -n '2,7s/^# *//p' "$0"; exit 2 ;;
esac
