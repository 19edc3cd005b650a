#!/bin/sh
# Tests the twin and remakes every golden file: PYTHON=/path/to/python oracle/run.sh (any Python with torch, numpy, pytest).
set -eu
cd "$(dirname "$0")"
PYTHON=${PYTHON:-python3}
"$PYTHON" -c 'import torch, numpy, pytest' 2>/dev/null || {
  echo "oracle: $PYTHON lacks torch, numpy or pytest; set PYTHON to one that has them" >&2
  exit 1
}
"$PYTHON" make_goldens.py
"$PYTHON" make_eval_golden.py
"$PYTHON" train_twin.py
"$PYTHON" -m pytest -q -p no:cacheprovider test_twin.py
