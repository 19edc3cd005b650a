#!/bin/bash
# RUN/run.json as a user meets it: what it says, going on with --resume RUN alone, starts that fail.
source "$(dirname "$0")/command_setup.sh"

value() { # FILE KEY: the last line of that name
  sed -n "s/^ *\"$2\": \(.*[^,]\),\{0,1\}$/\1/p" "$1" | tail -1
}
is() { # FILE KEY EXPECTED
  [ "$(value "$1" "$2")" = "$3" ] || fail "$1: $2 is $(value "$1" "$2"), expected $3"
}

cd "$work" || exit 1
"$program" --version | grep -q '^dsmoe [0-9.]* (.*), engine version [0-9]*$' || fail "no commit in $("$program" --version)"
"$program" train --config config.json --data corpus.txt --out whole --steps 30 --batch 4 --seq 32 --threads 1 --quiet \
  > /dev/null || fail "train: exit $?"
record=whole/run.json
is $record program '"train"'
is $record end '"finished"'
is $record first_step 1
is $record last_step 30
is $record version "\"$("$program" --version | cut -d' ' -f2)\""
is $record commit "\"$("$program" --version | sed 's/.*(\(.*\)).*/\1/')\""
is $record path "\"$work/corpus.txt\""
is $record bytes "$(stat -c %s corpus.txt)"
is $record seed 1
is $record parameters 14352
grep -q '"xxh64": "[0-9a-f]\{16\}"' $record || fail "no hash of the data"
grep -q '"host": "..*"' $record || fail "no machine"

# A run that is stopped goes on with nothing but its name, from another folder, moved: to the same bytes.
become_train "$work/stopped" 30 --save-every 0 > /dev/null &
child=$!
until [ -s stopped/metrics.jsonl ]; do kill -0 $child 2> /dev/null || break; sleep 0.01; done
is stopped/run.json end '"going on"'
kill -s INT $child 2> /dev/null
wait $child
case "$(value stopped/run.json end)" in '"stopped by signal 2"' | '"finished"') ;; *) fail "the end: $(value stopped/run.json end)" ;; esac
mv stopped moved
(cd / && "$program" train --resume "$work/moved" --threads 1 --quiet > /dev/null) || fail "--resume RUN alone: exit $?"
same whole/step-00000030 moved/step-00000030
is moved/run.json end '"finished"'

# What is given again and agrees changes nothing; what differs is named, in the log and in the file.
"$program" train --resume moved --batch 4 --lr 1e-3 --data corpus.txt --threads 1 > /dev/null 2> err || fail "the same flags: $(cat err)"
grep -q "instead of" err && fail "flags that agree are told: $(cat err)"
"$program" train --resume moved --steps 32 --save-every 1 --threads 1 > /dev/null 2> err || fail "more steps: $(cat err)"
grep -q "goes on with --save-every 1 instead of 0" err || fail "a change is not told: $(cat err)"
grep -q "the plan changed: steps: the checkpoint has 30, this run has 32" err || fail "more steps are not told: $(cat err)"
grep -q -- '"--steps 32 instead of 30"' moved/run.json || fail "a change is not kept"
"$program" train --resume moved --batch 8 --threads 1 > /dev/null 2> err && fail "another batch was taken"
grep -q "batch: the checkpoint has 4, this run has 8" err || fail "another batch: $(cat err)"
grep -q -- '"--batch": "4"' moved/run.json || fail "a refused start changed run.json"

# A record that can no longer be written: the steps are saved all the same, and somebody is told.
"$program" train --config config.json --data corpus.txt --out unnoted --steps 100000 --batch 4 --seq 32 --threads 1 --save-every 0 \
  > /dev/null 2> err &
child=$!
until [ -s unnoted/metrics.jsonl ]; do kill -0 $child 2> /dev/null || break; sleep 0.01; done
rm unnoted/run.json
mkdir -p unnoted/run.json/in-the-way
kill -s INT $child
wait $child
code=$?
[ $code = 130 ] || fail "a record that cannot be written: exit $code: $(cat err)"
ls -d unnoted/step-* > /dev/null 2>&1 || fail "no checkpoint where the record cannot be written"
grep -q "warning: how the run ended (stopped by signal 2) could not be noted: .*run.json" err || fail "a lost note is not told: $(cat err)"

# A run that was killed says so once it goes on.
become_train "$work/killed" 100000 --save-every 5 > /dev/null 2>&1 &
child=$!
until ls -d killed/step-* > /dev/null 2>&1; do kill -0 $child 2> /dev/null || break; sleep 0.01; done
kill -s KILL $child
wait $child 2> /dev/null
"$program" train --resume killed --steps 30 --threads 1 --quiet > /dev/null 2> err
grep -q '"end": "killed"' killed/run.json || fail "a kill is not noted"

# Lost files: the checkpoint has the config. Runs of earlier programs have no run.json and go on as they did.
cp config.json gone.json
"$program" train --config gone.json --data corpus.txt --out lost --steps 10 --batch 4 --seq 32 --threads 1 --quiet > /dev/null || fail "train: exit $?"
rm gone.json
"$program" train --resume lost --steps 12 --threads 1 --quiet > /dev/null 2> err || fail "without its config: $(cat err)"
rm whole/run.json
"$program" train --resume whole > /dev/null 2> err && fail "resumed from nothing"
grep -q "no run.json in it says how it was begun; give --data" err || fail "without run.json: $(cat err)"
train "$work/whole" 31 --resume > /dev/null || fail "an earlier program's run: exit $?"
is whole/run.json first_step 31
echo '{"format": 7}' > whole/run.json
"$program" train --resume whole > /dev/null 2> err && fail "a record of another format was taken"
grep -q "format 7, this program reads 1" err || fail "another format: $(cat err)"

# A damaged record: those who only look go on without it, and who trains says what to do.
cp -r lost damaged
head -c 300 lost/run.json > damaged/run.json
"$program" train --resume damaged > /dev/null 2> err && fail "resumed with half a record"
grep -q "repair it, or move it away" err || fail "half a record: $(cat err)"
"$program" generate damaged -p the --max-tokens 1 > /dev/null 2> err || fail "generate with half a record: $(cat err)"
grep -q "warning: damaged/run.json: not valid JSON" err || fail "half a record is not told: $(cat err)"
"$program" report damaged --samples 0 > /dev/null 2> err || fail "report with half a record: $(cat err)"
sed 's/"--batch": "4"/"--batch": "x"/' lost/run.json > damaged/run.json
"$program" train --resume damaged > /dev/null 2> err && fail "resumed with a batch of x"
grep -q "with the options kept in damaged/run.json: --batch: expected a whole number, got x" err || fail "a broken option: $(cat err)"

# Files that changed since: named, whether they decide the weights or only the validation loss.
cp corpus.txt mine.txt
cp corpus.txt valid.txt
"$program" train --config config.json --data mine.txt --valid-data valid.txt --out changed --steps 4 --batch 4 --seq 32 --threads 1 \
  > /dev/null 2> err || fail "train: $(cat err)"
grep -q "valid.txt is validated on and trained on" err || fail "the same file twice is not told: $(cat err)"
echo "more" >> valid.txt
"$program" train --resume changed --steps 5 --threads 1 > /dev/null 2> err || fail "other text to validate on: $(cat err)"
grep -q "valid.txt is not what it was when the run was last begun: [0-9]* bytes then, [0-9]* now" err || fail "a changed file: $(cat err)"
echo "more" >> mine.txt
"$program" train --resume changed --steps 6 --threads 1 > /dev/null 2> err && fail "other text was taken"
grep -q "mine.txt is not what it was" err || fail "which file changed is not told: $(cat err)"

# A run, a comparison and a model are not written over one another.
cp -r lost kept
"$program" compare --config config.json --data corpus.txt -o kept --steps 1 --seeds 1 > /dev/null 2> err && fail "a comparison over a run"
grep -q "kept: a training run lies there; choose another --out" err || fail "a comparison over a run: $(cat err)"
same lost kept
mkdir comparison
echo '{}' > comparison/compare.json
for over in comparison lost/step-00000012; do
  cp -r $over over
  "$program" train --config config.json --data corpus.txt --out over --steps 1 --batch 4 --seq 32 > /dev/null 2> err && fail "a run over $over"
  grep -q "lies there.*; choose another --out" err || fail "a run over $over: $(cat err)"
  same $over over
  rm -r over
done
mkdir texts
cp corpus.txt texts
"$program" train --config config.json --data texts --out texts/run --steps 1 --batch 4 --seq 32 > /dev/null 2> err
[ $? = 2 ] || fail "a run among its texts: $(cat err)"
grep -q -- "--out texts/run lies in the texts of texts" err || fail "a run among its texts: $(cat err)"
"$program" train --config config.json --data corpus.txt --valid-data texts --cache texts/cache --out cached --steps 1 --batch 4 --seq 32 > /dev/null 2> err
[ $? = 2 ] || fail "a cache among texts: $(cat err)"
grep -q -- "--cache texts/cache lies in the texts of texts" err || fail "a cache among texts: $(cat err)"
[ ! -e cached ] || fail "a refused start left a folder"
[ "$(ls -A texts)" = corpus.txt ] || fail "a refused start left $(ls -A texts)"

# Which run: two names, none, no such run.
"$program" train --resume moved --out whole > /dev/null 2> err
[ $? = 2 ] || fail "two runs: $(cat err)"
"$program" train --data corpus.txt > /dev/null 2> err
[ $? = 2 ] && grep -q -- "--out: expected RUN, got nothing" err || fail "no --out: $(cat err)"
"$program" train --out new > /dev/null 2> err
[ $? = 2 ] && grep -q -- "--data: expected FILE, got nothing" err || fail "no --data: $(cat err)"
"$program" train --resume nowhere > /dev/null 2> err && fail "no such run was resumed"
grep -q "nowhere: no such folder" err || fail "no such run: $(cat err)"

# A start that fails leaves no folder, and one that was there as it was.
fails() { # EXPECTED arguments
  local expected=$1
  shift
  "$program" train --steps 5 --batch 4 --seq 32 --threads 1 "$@" > /dev/null 2> err && fail "$* went well"
  grep -q -- "$expected" err || fail "$*: $(cat err)"
}
echo '{"text": "a"' > bad.jsonl
fails "not valid JSON" --config config.json --data bad.jsonl --out new/run
[ ! -e new ] || fail "a failed start left $(find new)"
fails "No such file" --config config.json --data nothing.txt --out new/run
[ ! -e new ] || fail "a failed start left $(find new)"
mkdir new
echo mine > new/notes
fails "not valid JSON" --config config.json --data bad.jsonl --out new
[ "$(ls -A new)" = notes ] || fail "a failed start left $(ls -A new)"
# With the tokens ready, they stay: they may have cost hours.
limit="ulimit -v 20000000" # KiB: whoever goes on regardless is not to take the machine down
($limit && "$program" --version) > /dev/null 2>&1 || limit=: # AddressSanitizer needs more to begin with
($limit && exec "$program" train --config config.json --data corpus.txt --out ready --batch 1000000000000 --seq 32) \
  > /dev/null 2> err && fail "a batch beyond all memory was begun"
grep -q "would take" err || fail "a batch beyond all memory: $(cat err)"
[ -e ready/run.json ] && fail "a start that failed left run.json"
[ -d ready/cache ] || fail "the tokens are gone"

# What another command made is that command's.
"$program" demo --steps 2 -o demo --threads 1 --quiet > /dev/null || fail "demo: exit $?"
is demo/run.json program '"demo"'
is demo/run.json end '"finished"'
"$program" train --resume demo > /dev/null 2> err && fail "train went on with a demo"
"$program" train --resume demo --data corpus.txt --config config.json > /dev/null 2> err && fail "train went on with a demo"
grep -q "dsmoe demo made this run" err || fail "a demo's run: $(cat err)"
echo "ok"
