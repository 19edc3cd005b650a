#!/bin/bash
# Kills `dsmoe train` at random moments while it saves after every step. No verified checkpoint may be lost, every restart
# must resume, and the end must equal an undisturbed run byte for byte. Usage: soak_kill.sh DSMOE [KILLS] [STEPS]
source "$(dirname "$0")/command_setup.sh"
kills=${2:-100}
steps=${3:-400}

# The newest checkpoint whose files match its manifest, by sha256sum: not by the program under test.
newest_verified() {
  local folder
  for folder in $(ls -d "$1"/step-* 2> /dev/null | sort -r); do
    [ -f "$folder/MANIFEST.json" ] || fail "$folder has no manifest: it appeared before it was whole"
    python3 - "$folder" <<'PY' && basename "$folder" && return
import hashlib, json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
files = json.loads((folder / "MANIFEST.json").read_text())["files"]
sys.exit(any(hashlib.sha256((folder / n).read_bytes()).hexdigest() != e["sha256"] for n, e in files.items()))
PY
    fail "$folder does not verify after a kill"
  done
  echo none
}

train "$work/whole" "$steps" --save-every 0 > /dev/null || fail "undisturbed run: exit $?"
best=none
done_early=0
for kill_idx in $(seq "$kills"); do
  become_train "$work/run" "$steps" --save-every 1 --keep 2 --resume > /dev/null 2> "$work/err" &
  child=$!
  sleep "0.$(printf %03d $((RANDOM % 600 + 20)))"
  kill -s KILL $child 2> /dev/null
  wait $child 2> /dev/null
  code=$?
  [ $code = 137 ] || [ $code = 0 ] || fail "kill $kill_idx: exit $code: $(cat "$work/err")"
  [ $code = 0 ] && done_early=$((done_early + 1))
  now=$(newest_verified "$work/run") || exit 1
  [ "$best" = none ] || [[ "$now" != none && ! "$now" < "$best" ]] || fail "kill $kill_idx: $best was lost, newest is $now"
  best=$now
done
train "$work/run" "$steps" --save-every 1 --keep 2 --resume > /dev/null || fail "the last resume: exit $?"
name=step-$(printf %08d "$steps")
same "$work/whole/$name" "$work/run/$name"
echo "ok: $kills kills ($done_early after the end), newest before the last resume $best"
