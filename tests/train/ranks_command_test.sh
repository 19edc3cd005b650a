#!/bin/bash
# dsmoe train on ranks: threads, and processes where mpirun is; the same files, and what happens to a rank that is killed.
# usage: ranks_command_test.sh PROGRAM [whole]
. "$(dirname "$0")/command_setup.sh"
whole=${2:-}

# One rank with the shards of four, then ranks that share them in all ways.
shards="--shards 4 --expert-shards 2"
train "$work/one" 6 $shards > /dev/null || fail "one rank of four shards: exit $?"
checkpoint=step-00000006
train "$work/two" 6 $shards --ranks 2 > /dev/null || fail "two ranks: exit $?"
same "$work/one/$checkpoint" "$work/two/$checkpoint"
train "$work/experts" 6 $shards --ranks 4 --expert-parallel 2 > /dev/null || fail "two by two ranks: exit $?"
same "$work/one/$checkpoint" "$work/experts/$checkpoint"

# Shards of the first start are kept, and the number of ranks may change.
train "$work/kept" 3 --ranks 2 --save-every 3 > /dev/null || fail "two ranks: exit $?"
grep -q '"--shards": "2"' "$work/kept/run.json" || fail "run.json keeps no shards: $(cat "$work/kept/run.json")"
"$program" train --resume "$work/kept" --steps 6 --ranks 1 --quiet > /dev/null || fail "going on with one rank: exit $?"
"$program" train --resume "$work/kept" --steps 9 --ranks 4 --quiet > /dev/null 2> "$work/err" && fail "four ranks of two shards"
grep -q -- "--ranks 4 does not divide --shards 2" "$work/err" || fail "the refusal says: $(cat "$work/err")"
train "$work/x" 3 --ranks 4 --expert-parallel 3 > /dev/null 2> "$work/err"
[ $? = 2 ] || fail "experts of three among four ranks are wrong usage"
grep -q -- "--expert-parallel 3 does not divide --ranks 4" "$work/err" || fail "the refusal says: $(cat "$work/err")"
[ ! -e "$work/x" ] || fail "wrong usage left a run"

if ! command -v mpirun > /dev/null || "$program" train --config "$work/config.json" --data "$work/corpus.txt" --out "$work/no" \
  --ranks 2 --transport mpi --steps 1 --quiet 2>&1 > /dev/null | grep -q "built without MPI"; then
  echo "ok, without processes: no MPI here"
  exit 0
fi
launch() { # RANKS RUN STEPS [more]
  local ranks=$1 run=$2 steps=$3
  shift 3
  mpirun --allow-run-as-root --oversubscribe --bind-to none -n "$ranks" "$program" train --config "$work/config.json" \
    --data "$work/corpus.txt" --out "$run" --steps "$steps" --batch 4 --seq 32 --threads 1 --quiet "$@"
}
launch 2 "$work/processes" 6 $shards > "$work/out" || fail "two processes: exit $?: $(cat "$work/out")"
same "$work/one/$checkpoint" "$work/processes/$checkpoint"
[ "$(grep -c '^checkpoint' "$work/out")" = 1 ] || fail "two processes say: $(cat "$work/out")"
launch 2 "$work/differ" 6 $shards --ranks 3 > /dev/null 2> "$work/err" && fail "--ranks against mpirun"
grep -q -- "--ranks 3, but OMPI_COMM_WORLD_SIZE=2" "$work/err" || fail "the refusal says: $(cat "$work/err")"

# A rank that is killed or frozen ends the job, with one message that names it.
ends_after() { # SIGNAL PATTERN
  launch 2 "$work/$1" 100000 --save-every 0 > /dev/null 2> "$work/err" &
  local job=$! begin=$SECONDS victim=
  until [ -s "$work/$1/metrics.jsonl" ]; do
    kill -0 $job 2> /dev/null || fail "the job to be stopped by $1 ended: $(cat "$work/err")"
    sleep 0.1
    [ $((SECONDS - begin)) -lt 120 ] || fail "no first step in two minutes"
  done
  for process in $(pgrep -f -- "--out $work/$1 " || true); do
    tr '\0' '\n' < "/proc/$process/environ" 2> /dev/null | grep -qx OMPI_COMM_WORLD_RANK=1 && victim=$process
  done
  [ -n "$victim" ] || fail "rank 1 is not found"
  begin=$SECONDS
  kill -s "$1" "$victim"
  wait $job && fail "the job survived $1"
  [ $((SECONDS - begin)) -le 30 ] || fail "$1: the job went on for $((SECONDS - begin)) s"
  grep -q "$2" "$work/err" || fail "$1 says: $(cat "$work/err")"
}
ends_after KILL "rank 1 on .* has ended without a word"
[ "$whole" = whole ] || { echo "ok"; exit 0; }
ends_after STOP "rank 1 on .* has not been heard of for"
launch 4 "$work/four" 6 $shards --expert-parallel 2 > /dev/null || fail "four processes: exit $?"
same "$work/one/$checkpoint" "$work/four/$checkpoint"
train "$work/started" 6 $shards --ranks 4 --transport mpi > /dev/null || fail "--transport mpi: exit $?"
same "$work/one/$checkpoint" "$work/started/$checkpoint"
echo "ok, all of it"
