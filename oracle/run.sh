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
# The tokenizer goldens need the package `tokenizers`; without it they stay as they are.
if "$PYTHON" -c 'import tokenizers' 2>/dev/null; then
  "$PYTHON" make_tokenizer_goldens.py
  "$PYTHON" make_tokenizer_components.py
fi
# The frame goldens need `transformers`, 4.38 for one column and 5.x for the other.
if "$PYTHON" -c 'import transformers' 2>/dev/null; then
  "$PYTHON" make_frame_goldens.py
fi
# The goldens of the family need `transformers` 5.
if "$PYTHON" -c 'import transformers; assert transformers.__version__ >= "5"' 2>/dev/null; then
  "$PYTHON" family_goldens.py
fi
# The chat goldens need `jinja2`, and likewise stay.
if "$PYTHON" -c 'import jinja2' 2>/dev/null; then
  "$PYTHON" make_chat_goldens.py
fi
# The constraint goldens need `jsonschema` and `rfc3339_validator`, and likewise stay.
if "$PYTHON" -c 'import jsonschema, rfc3339_validator' 2>/dev/null; then
  "$PYTHON" make_constraint_goldens.py ../src/constrain/testdata/cases.json
fi
"$PYTHON" -m pytest -q -p no:cacheprovider test_twin.py
