#!/bin/sh
# fuzz.sh SECONDS: runs every libFuzzer target of build-fuzz/ that long, from its committed corpus; stops at a finding.
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-60}
count=0
for target in build-fuzz/fuzz/*_fuzz; do
  [ -x "$target" ] || continue
  name=$(basename "$target" _fuzz)
  grown=build-fuzz/corpus/$name
  mkdir -p "$grown" build-fuzz/findings
  echo "fuzz: $name, $seconds s"
  log=build-fuzz/findings/$name.log
  # A finding is a crash, a sanitizer report, one input over 5 s, or over 512 MB.
  if ! "$target" -max_total_time="$seconds" -timeout=5 -rss_limit_mb=512 -print_final_stats=1 \
      -artifact_prefix="build-fuzz/findings/$name-" "$grown" "fuzz/corpus/$name" >"$log" 2>&1; then
    tail -n 40 "$log"
    echo "fuzz: $name: FINDING; input under build-fuzz/findings/, log in $log" >&2
    exit 1
  fi
  grep -E 'stat::(number_of_executed_units|peak_rss_mb)' "$log" || true
  count=$((count + 1))
done
[ "$count" -gt 0 ] || { echo "fuzz: no targets in build-fuzz/fuzz" >&2; exit 1; }
echo "fuzz: $count targets, no finding"
