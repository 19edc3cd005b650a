#!/bin/bash
# What files may do to the program, and what it leaves behind: cuts while in use, kills, full disks, pipes, devices, new names.
source "$(dirname "$0")/../train/command_setup.sh"

says() { # FILE PATTERN
  grep -q -- "$2" "$1" || fail "expected \"$2\", found: $(cat "$1")"
}
hidden_in() { # FOLDER: names that a writer hides
  find "$1" -maxdepth 1 -name '.*.tmp-*'
}
first_step() { # RUN PROCESS
  until [ -s "$1/metrics.jsonl" ]; do
    kill -0 "$2" 2> /dev/null || break
    sleep 0.01
  done
}

train "$work/run" 2 > /dev/null || fail "train: exit $?"
model=$work/run/step-00000002

# A token shard that is cut while it is trained on: to nothing, a fault; within its last page, zeros.
for left in 0 100; do
  become_train "$work/cut-$left" 1000000 --save-every 1000000 > /dev/null 2> "$work/err" &
  child=$!
  first_step "$work/cut-$left" $child
  shard=$(ls "$work/cut-$left"/cache/tokens-*/00000.tokens)
  truncate -s $left "$shard"
  wait $child
  code=$?
  [ $code = 1 ] || fail "a shard cut to $left bytes: exit $code: $(cat "$work/err")"
  says "$work/err" "dsmoe: $shard: "
  says "$work/err" "bytes.*when it was opened"
done

# Names of others that look like ours stay, in the run's folder and in the cache's.
mkdir -p "$work/shared/.backup.tmp-2024-11" "$work/mine/.mail.tmp-1-2" "$work/shared/.tokens-0123456789abcdef.tmp-1-1"
train "$work/mine" 1 --cache "$work/shared" > /dev/null || fail "train with a shared cache: exit $?"
[ -d "$work/shared/.backup.tmp-2024-11" ] && [ -d "$work/mine/.mail.tmp-1-2" ] || fail "removed what is not its own"
[ ! -e "$work/shared/.tokens-0123456789abcdef.tmp-1-1" ] || fail "left what is its own"

# With stderr closed, no file of the run takes its place.
train "$work/closed" 1 > /dev/null 2>&- || fail "train without stderr: exit $?"
! grep -q dsmoe "$work/closed/.lock" || fail "messages in a file of the run: $(cat "$work/closed/.lock")"

# A packed image that is cut between two answers.
"$program" logits "$model" --tokens 0,70,71 --cache -o "$work/logits" > /dev/null || fail "logits --cache: exit $?"
mkfifo "$work/to" "$work/from"
"$program" chat "$model" --cache --max-tokens 4 < "$work/to" > "$work/from" 2> "$work/err" &
child=$!
exec 3> "$work/to" 4< "$work/from"
echo "one" >&3
read -r -n 1 -t 60 -u 4 || fail "chat does not answer: $(cat "$work/err")"
cat <&4 > /dev/null &
truncate -s 0 "$model/packed-bf16.dsmoe"
(trap '' PIPE && echo "two" >&3) 2> /dev/null # the first answer may have met the cut already
exec 3>&-
wait $child
code=$?
exec 4<&-
[ $code = 1 ] || fail "a cut image: exit $code: $(cat "$work/err")"
says "$work/err" "packed-bf16.dsmoe: was cut while in use: expected the [0-9]* bytes it had when it was opened, it has 0"
rm "$model/packed-bf16.dsmoe"

# Hidden files of killed writers are listed by info and removed by the next writer; others' are not.
for name in .q.tmp-1-0 .step-00000077.tmp-1-0; do
  mkdir "$work/run/$name"
  head -c 5000 /dev/zero > "$work/run/$name/.model.safetensors.tmp-1-1"
done
head -c 7000 /dev/zero > "$model/.packed-bf16.dsmoe.tmp-1-2"
"$program" info "$model" > "$work/out" || fail "info: exit $?"
says "$work/out" "rm -r"
says "$work/out" "run/.q.tmp-1-0  4.9 KiB"
says "$work/out" "step-00000002/.packed-bf16.dsmoe.tmp-1-2  6.8 KiB"
"$program" info "$model/" --json > "$work/out" || fail "info --json: exit $?"
says "$work/out" '"bytes": 7000'
"$program" quantize "$model" --to int8 -o "$work/run/q" --no-compare > /dev/null || fail "quantize: exit $?"
[ "$(hidden_in "$work/run")" = "$work/run/.step-00000077.tmp-1-0" ] || fail "quantize left $(hidden_in "$work/run")"
"$program" logits "$model" --tokens 0,70,71 --cache -o "$work/logits" > /dev/null || fail "logits --cache: exit $?"
[ -z "$(hidden_in "$model")" ] || fail "--cache left $(hidden_in "$model")"
head -c 7000 /dev/zero > "$model/.packed-bf16.dsmoe.tmp-1-2"
"$program" logits "$model" --tokens 0,70,71 --cache -o "$work/logits" > /dev/null || fail "logits with an image: exit $?"
[ -z "$(hidden_in "$model")" ] || fail "--cache with an image left $(hidden_in "$model")"
rm "$model/packed-bf16.dsmoe"
train "$work/run" 3 --resume > /dev/null || fail "resume: exit $?"
[ -z "$(hidden_in "$work/run")" ] || fail "train left $(hidden_in "$work/run")"

# The same bytes under another name go on.
cp -r "$work/run" "$work/same"
train "$work/same" 4 --resume > /dev/null || fail "resume: exit $?"
mv "$work/corpus.txt" "$work/renamed.txt"
"$program" train --config "$work/config.json" --data "$work/renamed.txt" --out "$work/run" --steps 4 --batch 4 --seq 32 \
  --threads 1 --quiet --resume > /dev/null 2> "$work/err" || fail "resume with a renamed corpus: $(cat "$work/err")"
[ "$(ls -d "$work"/run/cache/tokens-* | wc -l)" = 1 ] || fail "a renamed corpus was encoded again"
mv "$work/renamed.txt" "$work/corpus.txt"
same "$work/same/step-00000004" "$work/run/step-00000004"

# A disk without room: a message, and no folder without files. Where files may grow by nothing, that is what a write says.
full() { # ARGUMENTS: what the program says in $work/err, its exit code
  (
    trap '' XFSZ
    ulimit -f 0
    exec "$program" "$@" 2>&1
  ) | cat > "$work/err"
  return "${PIPESTATUS[0]}"
}
full tokenizer train "$work/corpus.txt" --vocab-size 290 -o "$work/a/b"
[ $? = 1 ] || fail "tokenizer train on a full disk: $(cat "$work/err")"
says "$work/err" "cannot write"
[ ! -e "$work/a" ] || fail "tokenizer train on a full disk leaves $(find "$work/a")"
full quantize "$model" --to int8 -o "$work/a/b" --no-compare
[ $? = 1 ] || fail "quantize on a full disk: $(cat "$work/err")"
[ ! -e "$work/a" ] || fail "quantize on a full disk leaves $(find "$work/a")"

# Pipes and devices where files are expected: refused at once, and never replaced.
mkfifo "$work/pipe"
mkdir "$work/piped"
mkfifo "$work/piped/metrics.jsonl" "$work/piped/config.json" "$work/piped/tokenizer.json"
refused() { # ARGUMENTS
  timeout 60 "$program" "$@" > /dev/null 2> "$work/err" < /dev/null
  local code=$?
  [ $code = 1 ] || fail "$*: exit $code: $(cat "$work/err")"
  says "$work/err" "expected a "
}
refused report "$work/piped"
refused info "$work/piped"
refused info "$work/pipe"
refused generate "$work/piped" -p x
refused tokenizer encode "$work/piped" -t x
refused tokenizer encode "$model" "$work/pipe"
refused tokenizer train "$work/pipe" --vocab-size 290 -o "$work/t"
refused tokenizer train /dev/zero --vocab-size 290 -o "$work/t"
[ ! -e "$work/t" ] || fail "tokenizer train leaves a folder for a pipe"
refused train --config "$work/config.json" --data /dev/zero --out "$work/t"
refused train --config "$work/pipe" --data "$work/corpus.txt" --out "$work/t"
refused eval "$model" --text "$work/pipe"
refused eval "$model" --pairs /dev/zero
refused eval "$model" --tokens "$work/pipe"
refused logits "$model" --tokens-file /dev/zero
refused generate "$model" --prompt-file "$work/pipe"
refused quantize "$model" --to int8 -o "$work/q" --text "$work/pipe"
refused report "$work/run" --data /dev/zero
refused report "$work/run" -o "$work/pipe"
refused logits "$model" --tokens 1 -o "$work/pipe"
[ -p "$work/pipe" ] || fail "a pipe was replaced by a file"
ln -s /dev/null "$work/null" # not /dev/null itself, which somebody else may need after this
refused logits "$model" --tokens 1 -o "$work/null"
[ -c "$work/null" ] || fail "a device was replaced by a file"
echo "ok"
