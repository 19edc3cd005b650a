#!/bin/sh
# run.sh: the page in headless Chromium, against the mock, then against `dsmoe serve` with DSMOE_MODEL or a model trained here.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
dsmoe=${DSMOE:-$root/build/dsmoe}
python=${PYTHON:-/usr/bin/python3} # the one that Debian's python3-selenium is for
scratch=$(mktemp -d)
server=
finish() {
  [ -z "$server" ] || kill "$server" 2>/dev/null || true
  rm -rf "$scratch"
}
trap finish EXIT
trap 'exit 130' INT TERM

cd "$here"
export PYTHONDONTWRITEBYTECODE=1
"$python" page_test.py
"$python" markdown_test.py
"$python" keeping_test.py
"$python" long_test.py
"$python" answer_test.py

if ! "$dsmoe" serve --help >/dev/null 2>&1; then
  echo "page: $dsmoe cannot serve; only the mock was asked" >&2
  exit 1
fi
model=${DSMOE_MODEL:-}
if [ -z "$model" ]; then
  model=$scratch/model
  "$dsmoe" demo -o "$model" --steps 150 --quiet >/dev/null
fi
"$dsmoe" serve "$model" --port 0 >"$scratch/serving" 2>"$scratch/log" &
server=$!
url=
for _ in $(seq 200); do
  url=$(sed -n 's/^serving .* on \(http:[^ ]*[0-9]\).*/\1/p' "$scratch/serving")
  [ -z "$url" ] || break
  kill -0 "$server" 2>/dev/null || break
  sleep 0.1
done
[ -n "$url" ] || { echo "page: the server did not start:" >&2; cat "$scratch/log" >&2; exit 1; }
DSMOE_URL=$url "$python" answer_test.py
