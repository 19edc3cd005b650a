#!/bin/sh
# run.sh: the openai and anthropic SDKs, LangChain, instructor, openai-agents, llm, lm-evaluation-harness and constrained answers to 200
# schemas against `dsmoe serve` on a small random model.
# PYTHON names the interpreter; CLIENTS_VENV an environment that has requirements.txt, else one is made under build/.
# RECORD=1 writes tests/clients/recorded.jsonl, which `make test` replays without Python.
set -eu
cd "$(dirname "$0")/../.."
program=$PWD/build/dsmoe
here=tests/clients
venv=${CLIENTS_VENV:-build/clients-venv}
if [ ! -x "$venv/bin/python" ]; then
  ${PYTHON:-python3} -m venv --system-site-packages "$venv"
  "$venv/bin/pip" install -q -r $here/requirements.txt
fi
work=$(mktemp -d)
server=
cleanup() {
  if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; wait "$server" || true; fi
  rm -rf "$work"
}
trap cleanup EXIT

"$program" demo --random --config $here/config.json --seed 7 -o "$work/model" --quiet >/dev/null
"$program" tokenizer train $here/corpus.txt --vocab-size 300 -o "$work/model" >/dev/null
cp src/text/testdata/chat/templates/deepseek.jinja "$work/model/chat_template.jinja"
DSMOE_API_KEY=test-key "$program" serve "$work/model" --port 0 --model-name small >"$work/out" 2>"$work/log" &
server=$!
port=
for _ in $(seq 100); do
  port=$(sed -n 's|.*http://127.0.0.1:\([0-9]*\)/.*|\1|p' "$work/out")
  [ -n "$port" ] && break
  sleep 0.1
done
[ -n "$port" ] || { cat "$work/log"; echo "clients: the server did not start" >&2; exit 1; }
record=
[ -n "${RECORD:-}" ] && record="--record $here/recorded.jsonl"
# shellcheck disable=SC2086
HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_HOME="$work/hf" NO_PROXY=127.0.0.1 no_proxy=127.0.0.1 PYTHONPATH=$here \
  "$venv/bin/python" $here/check.py --port "$port" --key test-key --model "$work/model" --program "$program" \
  --work "$work" $record
"$venv/bin/python" $here/structured.py --url "http://127.0.0.1:$port"
kill -TERM "$server"
wait "$server" || { echo "clients: the server did not end cleanly" >&2; exit 1; }
server=
echo "clients: ok"
