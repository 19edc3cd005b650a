#!/bin/bash
# dsmoe train as a user runs it: from text to a folder, signals, resuming, a second writer.
source "$(dirname "$0")/command_setup.sh"

train "$work/whole" 30 --save-every 10 --keep 2 > "$work/out" || fail "train: exit $?"
grep -q "step-00000030" "$work/out" || fail "the checkpoint is not named: $(cat "$work/out")"
[ "$(ls -d "$work"/whole/step-* | wc -l)" = 2 ] || fail "--keep 2 kept $(ls "$work/whole")"
for name in config.json model.safetensors tokenizer.json tokenizer_config.json generation_config.json \
  chat_template.jinja train_state.safetensors MANIFEST.json; do
  [ -f "$work/whole/step-00000030/$name" ] || fail "no $name"
done
grep -q '"chat_template": "{{- bos_token' "$work/whole/step-00000030/tokenizer_config.json" || fail "no template for older readers"
[ "$(wc -l < "$work/whole/metrics.jsonl")" = 30 ] || fail "metrics.jsonl has not 30 lines"
ls "$work"/whole/events.out.tfevents.* > /dev/null || fail "no event file"
"$program" info "$work/whole/step-00000030" > /dev/null || fail "info cannot read it"
"$program" logits "$work/whole/step-00000030" --tokens 0,70,71 -o "$work/logits" > /dev/null || fail "logits cannot run it"

# Until the run has logged a step: it holds its lock then, and knows its signals.
first_step() { # RUN PROCESS
  until [ -s "$1/metrics.jsonl" ]; do
    kill -0 "$2" 2> /dev/null || break
    sleep 0.01
  done
}

# Signals: the step is finished and saved, the exit code says which; then the run goes on to the same bytes.
stopped() { # SIGNAL CODE
  become_train "$work/$1" 30 --save-every 0 --resume > /dev/null &
  local child=$!
  first_step "$work/$1" $child
  kill -s "$1" $child 2> /dev/null
  wait $child
  local code=$?
  # On a slow day the run may have ended before the signal came.
  [ $code = "$2" ] || [ $code = 0 ] || fail "$1: exit $code, expected $2"
  train "$work/$1" 30 --resume > /dev/null || fail "resume after $1: exit $?"
  same "$work/whole/step-00000030" "$work/$1/step-00000030"
}
stopped INT 130
stopped TERM 143
stopped HUP 129

# A signal while the data is read for a tokenizer ends that, too.
seq 1 2000000 | sed 's/000$/000<|endoftext|>/' > "$work/long.txt"
"$program" train --config "$work/config.json" --data "$work/long.txt" --out "$work/read" --threads 1 --quiet > /dev/null &
child=$!
until [ -e "$work/read/.lock" ]; do kill -0 $child 2> /dev/null || break; sleep 0.01; done
kill -s INT $child 2> /dev/null
wait $child
[ $? = 130 ] || fail "INT while a tokenizer is trained: exit $?"
[ ! -e "$work/read/tokenizer.json" ] || fail "INT was heard only after a tokenizer was trained"

# A run that ended before its first checkpoint, then another text: a tokenizer is trained on that.
seq 1 5000 | tr '\n' ' ' > "$work/numbers.txt"
"$program" train --config "$work/config.json" --data "$work/numbers.txt" --out "$work/other" --steps 30 --batch 4 --seq 32 \
  --threads 1 --quiet > /dev/null || fail "train on numbers: exit $?"
rm -r "$work"/other/step-*
train "$work/other" 30 > /dev/null || fail "train where another run began: exit $?"
same "$work/whole/step-00000030" "$work/other/step-00000030"
# The tokenizer of checkpoints stays, and so does one that the program did not make for the run.
cp "$work/other/tokenizer.json" "$work/before.json"
"$program" train --config "$work/config.json" --data "$work/numbers.txt" --out "$work/other" --steps 31 --batch 4 --seq 32 \
  --threads 1 --quiet --resume > /dev/null 2>&1 && fail "resumed with other data"
cmp -s "$work/other/tokenizer.json" "$work/before.json" || fail "the tokenizer of a run was replaced"
mkdir "$work/own"
cp "$work/other/tokenizer.json" "$work/own"
"$program" train --config "$work/config.json" --data "$work/numbers.txt" --out "$work/own" --steps 2 --batch 4 --seq 32 \
  --threads 1 --quiet > /dev/null || fail "train with a tokenizer put into the run: exit $?"
cmp -s "$work/own/tokenizer.json" "$work/before.json" || fail "a user's tokenizer was replaced"

# A tokenizer with other special ids than the config's: documents would begin and end with words.
"$program" tokenizer train "$work/corpus.txt" --vocab-size 290 --bos-id 7 --eos-id 8 -o "$work/ids" > /dev/null 2>&1
train "$work/z" 2 --tokenizer "$work/ids" > /dev/null 2> "$work/err" && fail "a config for another tokenizer was taken"
grep -q 'bos_token_id 0 is the word ".*" of the tokenizer, whose own is .* with id 7' "$work/err" || fail "it says: $(cat "$work/err")"
rm "$work/ids/tokenizer_config.json"
train "$work/z" 2 --tokenizer "$work/ids" --resume > /dev/null 2> "$work/err" || fail "an ordinary token as eos: exit $?"
sed 's/"eos_token_id": 1/"eos_token_id": 295/' "$work/config.json" > "$work/eos.json"
"$program" train --config "$work/eos.json" --tokenizer "$work/whole" --data "$work/corpus.txt" --out "$work/e" --steps 1 --batch 4 --seq 32 \
  > /dev/null 2>&1 && fail "an eos that is a word was taken"
"$program" train --config "$work/eos.json" --tokenizer "$work/ids" --data "$work/corpus.txt" --out "$work/e" --steps 1 --batch 4 --seq 32 \
  > /dev/null 2> "$work/err" && fail "an eos that is no token was taken"
grep -q "eos_token_id 295 is no token of the tokenizer" "$work/err" || fail "it says: $(cat "$work/err")"

# Documents begin as prompts do: with the tokenizer's BOS, and without one where it adds none.
begins() { # NAME
  "$program" train --config "$work/config.json" --tokenizer "$work/$1" --data "$work/corpus.txt" --out "$work/of-$1" --steps 1 --batch 4 \
    --seq 32 --threads 1 2>&1 > /dev/null | grep -q "puts no BOS before a text, so documents begin without one"
}
cp -r "$work/whole/step-00000030" "$work/bare"
tr '\n' ' ' < "$work/whole/tokenizer.json" | sed 's/"post_processor": {.*}, *"decoder"/"post_processor": null, "decoder"/' > "$work/bare/tokenizer.json"
begins bare || fail "a tokenizer without BOS is not told"
cp -r "$work/bare" "$work/llama"
sed -i 's/PreTrainedTokenizerFast/LlamaTokenizerFast/' "$work/llama/tokenizer_config.json"
begins llama && fail "add_bos_token is not heeded"

# A second writer on one run is refused while the first goes on.
become_train "$work/busy" 100000 > /dev/null 2>&1 &
busy=$!
first_step "$work/busy" $busy
train "$work/busy" 100000 --resume > /dev/null 2> "$work/err" && fail "two writers"
grep -q "is training there" "$work/err" || fail "the refusal says: $(cat "$work/err")"
kill -s KILL $busy
wait $busy 2> /dev/null

# Disks of a few checkpoints, where a file system may be mounted for oneself. The last of eight is saved where older ones
# can make room; where not even one fits, that is told before the first step.
mkdir "$work/disk"
on_a_disk_of() { # SIZE
  unshare -rm bash -c '
    mount -t tmpfs -o size="$1" tmpfs "$2/disk" || exit 77
    "$3" train --config "$2/config.json" --data "$2/corpus.txt" --out "$2/disk/run" --steps 40 --batch 4 --seq 32 \
      --threads 1 --save-every 5 --keep 10 2> "$2/err"
    code=$?
    ls "$2/disk/run" > "$2/files"
    exit $code' - "$1" "$work" "$program" > /dev/null 2>&1
}
on_a_disk_of 2000k
code=$?
if [ $code != 77 ] && unshare -rm true 2> /dev/null; then
  [ $code = 0 ] || fail "a disk of a few checkpoints: exit $code: $(cat "$work/err")"
  grep -q step-00000040 "$work/files" || fail "the last checkpoint is missing: $(cat "$work/files")"
  grep -q "step-00000005 was removed" "$work/err" || fail "nothing was said: $(cat "$work/err")"
  grep -q "more at a time" "$work/err" || fail "no word at the start: $(cat "$work/err")"
  on_a_disk_of 1000k && fail "a run that can never be saved was begun"
  grep -q "a checkpoint takes" "$work/err" || fail "the refusal says: $(cat "$work/err")"
  grep -q metrics.jsonl "$work/files" && fail "steps were made that cannot be saved"
fi

# A log that can no longer be written ends the run, but not before its steps are saved.
(
  trap '' XFSZ
  ulimit -f 200 # KiB: more than any file of a checkpoint, less than the metrics of 1000 steps
  become_train "$work/log" 1000 --save-every 0
) > /dev/null 2> "$work/err"
[ $? = 1 ] || fail "a log that is full: exit $?"
grep -q "cannot write .*\(metrics\|events\)" "$work/err" || fail "a full log: $(cat "$work/err")"
ls -d "$work"/log/step-* > /dev/null 2>&1 || fail "the steps before the log was full are lost"

# The model a run began with is not needed to go on.
cp -r "$work/whole/step-00000030" "$work/base"
train "$work/tuned" 20 --init "$work/base" --save-every 10 > /dev/null || fail "train --init: exit $?"
cp -r "$work/tuned" "$work/stopped"
rm -r "$work/stopped/step-00000020" "$work/base"
train "$work/stopped" 20 --init "$work/base" --save-every 10 --resume > /dev/null || fail "resuming without --init's folder: exit $?"
same "$work/tuned/step-00000020" "$work/stopped/step-00000020"

# A trained model is gone on from with a small learning rate, said with the reason; and what it was worth before is printed.
loud() { # RUN [more]
  local run=$1
  shift
  "$program" train --data "$work/corpus.txt" --out "$run" --steps 2 --warmup 0 --batch 4 --seq 32 --threads 1 "$@" \
    > "$work/out" 2> "$work/err" || fail "train $*: exit $?: $(cat "$work/err")"
}
loud "$work/gone-on" --init "$work/whole/step-00000030"
grep -q -- "--lr 0.0001: the default with --init" "$work/err" || fail "no word of --lr: $(cat "$work/err")"
grep -q '"lr":0.0001' "$work/gone-on/metrics.jsonl" || fail "another --lr was used: $(cat "$work/gone-on/metrics.jsonl")"
grep -q "validation loss before step 1: [0-9]" "$work/err" || fail "no loss before step 1: $(cat "$work/err")"
grep -q "^before step 1 *[0-9]" "$work/out" || fail "no loss before step 1: $(cat "$work/out")"
loud "$work/gone-on-with" --init "$work/whole/step-00000030" --lr 0.002
grep -q '"lr":0.002' "$work/gone-on-with/metrics.jsonl" || fail "--lr was not used: $(cat "$work/gone-on-with/metrics.jsonl")"
grep -q -- "--lr" "$work/err" && fail "a default is named beside --lr: $(cat "$work/err")"
loud "$work/new" --config "$work/config.json"
grep -q "validation loss before step 1: [0-9]" "$work/err" || fail "random weights were not measured: $(cat "$work/err")"
grep -q -- "--lr 0.001: the default from random weights" "$work/err" || fail "no word of --lr: $(cat "$work/err")"
grep -q '"lr":0.001,' "$work/new/metrics.jsonl" || fail "another --lr was used: $(cat "$work/new/metrics.jsonl")"

# An error that nobody can be told of.
"$program" info /no/such/model 2> /dev/full
[ $? = 1 ] || fail "exit $? when the message cannot be written"

# Whoever reads the messages may leave; ctrl-c in `train 2>&1 | tee log` ends the reader first.
exec 9> >(:)
wait $!
"$program" train --config "$work/config.json" --data "$work/corpus.txt" --out "$work/unread" --steps 30 --batch 4 --seq 32 \
  --threads 1 > "$work/out" 2>&9 || fail "train without a reader of its messages: exit $?"
same "$work/whole/step-00000030" "$work/unread/step-00000030"
# Results that nobody takes are an error, and the work is done all the same.
"$program" train --config "$work/config.json" --data "$work/corpus.txt" --out "$work/untold" --steps 30 --batch 4 --seq 32 \
  --threads 1 >&9 2> "$work/err" && fail "results were lost without a word"
grep -q "cannot write to standard output" "$work/err" || fail "a lost result: $(cat "$work/err")"
same "$work/whole/step-00000030" "$work/untold/step-00000030"
# Short commands end with their reader, as others do, unless whoever runs this ignores SIGPIPE.
(kill -s PIPE "$BASHPID")
expected=$?
[ $expected = 141 ] || expected=1
"$program" info "$work/whole/step-00000030" 2> "$work/err" >&9
[ $? = $expected ] || fail "info without a reader: $(cat "$work/err")"
exec 9>&-

# Wrong usage.
train "$work/whole" 30 > /dev/null 2> "$work/err" && fail "overwrote a run"
grep -q -- "--resume" "$work/err" || fail "no hint at --resume: $(cat "$work/err")"
train "$work/x" 30 --train 'nothing.*' > /dev/null 2>&1
[ $? = 2 ] || fail "a pattern without a match is wrong usage"
train "$work/y" 30 --batch 4 --micro-batch 3 > /dev/null 2>&1
[ $? = 2 ] || fail "a micro-batch that does not divide is wrong usage"
"$program" train --config "$work/config.json" --data /no/such/file --out "$work/y" --batch 4 --micro-batch 3 2> /dev/null
[ $? = 2 ] || fail "wrong usage is told after the data was read"
for wrong in "--seq 65" "--train nothing.*" "--init $work/nowhere"; do
  "$program" train --config "$work/config.json" --data /no/such/file --out "$work/y" $wrong 2> "$work/err"
  grep -q "/no/such/file" "$work/err" && fail "$wrong is told after the data was read"
done
"$program" train --init "$work/whole" --data "$work/corpus.txt" --out "$work/from-run" --steps 1 --batch 4 --seq 32 --threads 1 \
  > /dev/null 2> "$work/err" || fail "--init RUN: $(cat "$work/err")"
grep -q "whole/step-00000030: the newest checkpoint of .*whole" "$work/err" || fail "--init RUN says: $(cat "$work/err")"
[ ! -e "$work/y" ] || fail "wrong usage left a run"
"$program" train --config "$work/config.json" --data /no/such/file --out "$work/whole" 2> "$work/err"
grep -q -- "--resume" "$work/err" || fail "a run in the way is told after the data was read: $(cat "$work/err")"
limit="ulimit -v 20000000" # KiB: whoever goes on regardless is not to take the machine down
($limit && "$program" --version) > /dev/null 2>&1 || limit=: # AddressSanitizer needs more to begin with
(
  $limit
  exec "$program" train --config "$work/config.json" --data "$work/corpus.txt" --out "$work/rows" --steps 2 --batch 1000000000000 --seq 32
) > /dev/null 2> "$work/err" && fail "a batch beyond all memory was begun"
grep -q -- "--batch 1000000000000 .* would take" "$work/err" || fail "the refusal says: $(cat "$work/err")"
# Numbers whose products are 2^64.
refused() { # EXIT TEXT command...
  local code=$1 text=$2
  shift 2
  (
    $limit
    exec "$program" "$@"
  ) > /dev/null 2> "$work/err"
  [ $? = "$code" ] && grep -q -- "$text" "$work/err" || fail "$*: expected $text: $(cat "$work/err")"
}
huge=$((1 << 61))
sed 's/"bos_token_id"/"seq_aux": false, "aux_loss_alpha": 0.01, "bos_token_id"/' "$work/config.json" > "$work/groups.json"
from="--data $work/corpus.txt --out $work/huge --threads 1"
refused 1 "would take" train --config "$work/config.json" $from --seq 8 --batch $huge
refused 2 "tokens are possible" train --config "$work/groups.json" $from --seq 8 --batch $huge --balance-group $huge
refused 2 "tokens are possible" train --config "$work/config.json" $from --seq 8 --batch $huge --micro-batch $huge
refused 2 "--batch: expected" compare $from --seq 8 --batch $huge --tokens 1000
train "$work/z" 30 --device-loss 1 --devices 7 > /dev/null 2> "$work/err"
[ $? = 2 ] || fail "devices that do not divide the experts are wrong usage"
grep -q -- "--devices 7 does not divide" "$work/err" || fail "the refusal says: $(cat "$work/err")"
echo "ok"
