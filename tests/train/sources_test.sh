#!/bin/bash
# dsmoe train on what researchers have: JSONL with other keys, folders and weights, files to validate on, pairs; and which
# checkpoint a run stands for afterwards.
source "$(dirname "$0")/command_setup.sh"
cd "$work" || exit 1

run() { # RUN [more]: a few steps
  local out=$1
  shift
  "$program" train --config config.json --out "$out" --steps 6 --batch 4 --seq 32 --threads 1 "$@" > out 2> err
}
works() { run "$@" || fail "$*: exit $?: $(cat err)"; }
refused() { # EXPECTED RUN [more]
  local expected=$1
  shift
  run "$@" && fail "$* went well"
  grep -qF -- "$expected" err || fail "$*: $(cat err)"
}

mkdir folder
for i in $(seq 1 40); do
  echo "{\"id\": $i, \"text\": \"some $i foxes in the year $((1900 + i))\", \"meta\": {\"url\": \"none\"}}"
done > folder/a.jsonl
sed 's/"text"/"body"/' folder/a.jsonl > bodies.jsonl
for i in $(seq 1 40); do
  echo "{\"messages\": [{\"role\": \"user\", \"content\": \"$i?\"}, {\"role\": \"assistant\", \"content\": \"yes, $i\", \"weight\": 1}]}"
done > chats.jsonl

# Other keys are left alone, and may be named.
works plain --data folder/a.jsonl
works folders --data folder
same plain/step-00000006 folders/step-00000006
refused 'it has "id", "body" and "meta"; expected {"text"}' bodies --data bodies.jsonl
works bodies --data bodies.jsonl --text-key body
"$program" train --resume bodies --steps 8 --threads 1 > /dev/null 2> err || fail "a run with keys of its own: $(cat err)"
works chats --data chats.jsonl
# A template without a place for tools is told of at once.
echo '{"messages": [{"role": "user", "content": "1 + 1"}, {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": {}}}]}]}' > calls.jsonl
refused 'the chat template leaves out "tool_calls"' calls --data calls.jsonl --tokenizer plain
echo '{"messages": [{"role": "user", "content": "1 + 1"}, {"role": "tool", "content": "2"}]}' > tool.jsonl
refused "not tool" tool --data tool.jsonl --tokenizer plain

# Weights: told by source, the same bits whatever the threads, kept for --resume.
works mixed --data corpus.txt:0.75 folder/:0.25 --save-every 3
grep -q '"source_losses":{"corpus.txt":[0-9.]*,"folder":[0-9.]*}' mixed/metrics.jsonl || fail "no loss by source"
grep -q '^  corpus.txt *[0-9]' out || fail "no loss by source at the end: $(cat out)"
head -1 mixed/metrics.csv | grep -q 'source_losses: folder' || fail "metrics.csv: $(head -1 mixed/metrics.csv)"
[ "$(wc -l < mixed/metrics.csv)" = 8 ] || fail "metrics.csv has not one row per step, step 0 and names"
grep -q '"share": 0.25' mixed/run.json || fail "no share in run.json"
cp -r mixed again
rm -r again/step-00000006
"$program" train --resume again --threads 2 --quiet > /dev/null || fail "resume of a mixed run: exit $?"
same mixed/step-00000006 again/step-00000006
"$program" train --resume again --data corpus.txt:0.5 folder/:0.5 --steps 7 > /dev/null 2> err && fail "other weights were taken"
grep -q 'data: the checkpoint has ".*shares 0.75 0.25"' err || fail "other weights: $(cat err)"
refused "it has no weight, others have" x --data corpus.txt:0.75 folder
refused "expected a weight above zero" x --data corpus.txt:0 folder:1
refused "is named twice" x --data folder/a.jsonl:1 folder:1
[ ! -e x ] || fail "a refused start left a folder"

# Files to validate on, pairs.
echo '{"context": "the 1 little", "continuation": " foxes"}' > pairs.jsonl
works valid --data folder --valid-data corpus.txt --eval-pairs pairs.jsonl
grep -q '"first_validation_loss"' valid/metrics.jsonl || fail "nothing was measured before step 1"
grep -q '"figures":{"pairs_log_likelihood":-[0-9.]*,"pairs_greedy":[01]' valid/metrics.jsonl || fail "pairs were not measured"
grep -q '^bits per byte' out || fail "no bits per byte: $(cat out)"
# What is logged of the pairs is what eval says of the checkpoint.
"$program" eval valid/step-00000006 --pairs pairs.jsonl --json --quiet > scores || fail "eval: exit $?"
logged=$(grep '^pairs_log_likelihood' out | awk '{print $2}')
expected=$(sed 's/.*"loglikelihood":\(-[0-9.]*\).*/\1/' scores | xargs printf '%.4f')
[ "$logged" = "$expected" ] || fail "pairs: $logged while it trains, $expected afterwards"
refused "No such file" x --data folder --valid-data nothing.txt
refused "pairs.jsonl" x --data folder --eval-pairs pairs.jsonl/nothing

# The best checkpoint is what the run stands for, else the newest.
works best --data corpus.txt --keep-best --keep 1 --valid-every 1 --lr 1 --warmup 6 --schedule constant
best=$(sed -n '/"best"/,/}/s/.*"step": \([0-9]*\),*/\1/p' best/run.json)
[ -n "$best" ] || fail "no best checkpoint in run.json"
"$program" generate best -p "the" --max-tokens 1 > /dev/null 2> err || fail "generate RUN: $(cat err)"
grep -q "best/step-0000000$best: the best checkpoint of best (validation loss" err || fail "which checkpoint: $(cat err)"
echo "the 1" | "$program" generate plain -p - --max-tokens 3 --temperature 0 --quiet > piped || fail "-p -: exit $?"
"$program" generate plain -p "the 1
" --max-tokens 3 --temperature 0 --quiet > given
cmp -s piped given || fail "-p - is not the prompt: $(cat piped), $(cat given)"
truncate -s -1 plain/step-00000006/model.safetensors
"$program" info plain > /dev/null 2> err || fail "a cut checkpoint beside others: $(cat err)"
grep -q "the newest checkpoint of plain but step-00000006" err || fail "a cut checkpoint is taken: $(cat err)"

# A run that learns nothing ends early.
works early --data corpus.txt --lr 0 --patience 2 --valid-every 1
grep -q "^ended early" out || fail "patience: $(cat out)"
grep -q '"end": "patience ended it' early/run.json || fail "patience is not in run.json"

# A name of a hub, an argument too many.
"$program" info deepseek-ai/deepseek-moe-16b-base > /dev/null 2> err && fail "a hub's name was found"
grep -q "hf download deepseek-ai/deepseek-moe-16b-base --local-dir deepseek-moe-16b-base" err || fail "a hub's name: $(cat err)"
"$program" generate best "Once upon" > /dev/null 2> err
[ $? = 2 ] && grep -q "^dsmoe: Once upon: one argument too many" err || fail "one argument too many: $(cat err)"

# A list of tensors is short.
works some --data corpus.txt --train '*.experts.*'
grep -q "trains model.layers.1.mlp.experts.0-3.down_proj.weight .*: 4 tensors" err || fail "the list: $(cat err)"
[ "$(grep -c "dsmoe: trains " err)" = 3 ] || fail "the list is long: $(cat err)"

# What a run was trained on is what it is probed on; folders are texts too; a run stands for its config and its tokenizer.
"$program" probe mixed --max-tokens 400 --threads 1 > out 2> err || fail "probe RUN: $(cat err)"
grep -q "^text   the run's data: " out || fail "probe RUN reads: $(cat out)"
grep -q "mixed/step-00000006: the newest checkpoint of mixed" err || fail "which checkpoint: $(cat err)"
"$program" probe mixed --data folder corpus.txt --max-tokens 400 --threads 1 > out 2> err || fail "probe --data folder: $(cat err)"
grep -q "^text   folder, corpus.txt: " out || fail "probe --data folder reads: $(cat out)"
"$program" probe mixed --data folder:1 > out 2> err && fail "probe took a weight"
grep -q "it takes no weights here" err || fail "a weight: $(cat err)"
"$program" tokenizer train folder --vocab-size 290 -o of-folder > out 2> err || fail "tokenizer train FOLDER: $(cat err)"
"$program" tokenizer train folder/a.jsonl --vocab-size 290 -o of-file > out 2> err || fail "tokenizer train FILE: $(cat err)"
cmp -s of-folder/tokenizer.json of-file/tokenizer.json || fail "a folder's tokenizer is not that of its file"
works elsewhere --data corpus.txt --cache shards
"$program" probe elsewhere --max-tokens 400 --threads 1 > out 2> err || fail "probe: $(cat err)"
grep -q "^text   the run's data: " out || fail "tokens that --cache put elsewhere are not found: $(cat out)"
sed 's/"n_routed_experts": 4/"n_routed_experts": 7/; s/"num_experts_per_tok": 2/"num_experts_per_tok": 3/; s/"intermediate_size": 24/"intermediate_size": 32/' config.json > shape.json
"$program" train --config shape.json --data corpus.txt --out shape --steps 1 --batch 4 --seq 32 --threads 1 --quiet > /dev/null || fail "train: exit $?"
"$program" train --config shape --tokenizer mixed --data folder --out like --steps 2 --batch 4 --seq 32 --threads 1 > out 2> err ||
  fail "--config RUN --tokenizer RUN: $(cat err)"
cmp -s like/step-00000002/tokenizer.json mixed/tokenizer.json || fail "--tokenizer RUN took another tokenizer"
compare() { "$program" compare --data folder -o compared --steps 2 --seeds 1 --batch 4 --seq 32 --threads 1 "$@" > out 2> err; }
compare --config shape || fail "compare --config RUN --data FOLDER: $(cat err)"
grep -q "^data  *folder: 40 documents" out || fail "compare reads: $(cat out)"
"$program" probe compared > out 2> err && fail "a comparison was probed"
grep -q "compared: a comparison of dsmoe compare; name one of its 4 runs, such as compared/a-seed-1" err || fail "a comparison: $(cat err)"
"$program" train --config folder --data corpus.txt --out x > out 2> err && fail "a folder without a config was taken"
grep -q "folder: no config.json in it; expected a file config.json, a folder with one, or a run" err || fail "no config: $(cat err)"

# Several runs on one page.
"$program" report plain mixed -o all.html > /dev/null 2> err || fail "report of two: $(cat err)"
grep -q '"kind":"runs"' all.html || fail "the page is of one run"
"$program" report mixed --samples 0 > /dev/null 2> err || fail "report: $(cat err)"
grep -q '"card":\[{"name":"command"' mixed/report.html || fail "no card in the report"
echo "ok"
