#!/usr/bin/env bash
# Installs each wheel of dist/ into an empty environment and tries all of it: tests, import time, size, old processors.
# SOAK=1: eight threads for a minute. EXTRAS=1: installs torch, transformers and lm-eval too (about 3 GB); ENVIRONMENT
# names an environment that has them already.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "check_wheel: $*" >&2; exit 1; }

interpreter_for() { # WHEEL
  case $1 in
    *-cp311-cp311-*) echo "${PYTHON:-python3}" ;;
    *) sed -n 's/^home = //p' build/wheel-env-cpython-31[2-9]/pyvenv.cfg | head -n 1 | sed 's|$|/python3|' ;;
  esac
}

check() { # WHEEL
  local wheel=$1 env=$work/env size
  size=$(stat -c %s "$wheel")
  [ "$size" -le $((15 << 20)) ] || fail "$wheel has $size bytes; at most 15 MiB are expected"
  rm -rf "$env"
  "$(interpreter_for "$wheel")" -m venv "$env"
  # No compiler can be called: what is installed is what was built.
  CC=/bin/false CXX=/bin/false "$env/bin/pip" install -q --disable-pip-version-check --only-binary :all: "$wheel" pytest
  [ -z "${EXTRAS:-}" ] || "$env/bin/pip" install -q --disable-pip-version-check torch transformers "lm-eval"
  [ -z "${ENVIRONMENT:-}" ] || echo "$ENVIRONMENT" > "$(echo "$env"/lib/python3.*/site-packages)/extras.pth"
  DSMOE_SOAK_SECONDS=${SOAK:+60} DSMOE_SOAK_SECONDS=${DSMOE_SOAK_SECONDS:-3} DSMOE_IMPORT_SECONDS=0.15 \
    "$env/bin/python" -m pytest -q -rs -p no:cacheprovider python/tests
  old_processors "$env"
  echo "check_wheel: $(basename "$wheel"), $((size >> 10)) KiB: ok"
}

# A processor without AVX-512, and one without AVX2: the same bits as this one's.
old_processors() { # ENVIRONMENT
  if ! command -v qemu-x86_64 > /dev/null; then
    echo "check_wheel: qemu-x86_64 (Debian: qemu-user) is not there; old processors were not tried" >&2
    return
  fi
  local python=$1/bin/python cpu here there interpreter packages
  "$python" -m dsmoe demo --random --config python/tests/tiny.json --seed 7 -o "$work/model-$$" --quiet > /dev/null
  cat > "$work/logits.py" <<'PY'
import hashlib, sys
import dsmoe
logits = dsmoe.load(sys.argv[1], threads=1).forward([0, 70, 71, 5]).logits
print(dsmoe.kernels(), hashlib.sha256(logits.tobytes()).hexdigest())
PY
  here=$("$python" "$work/logits.py" "$work/model-$$")
  # A virtual environment's python looks for its packages by the path it was started with; qemu shows the interpreter's own.
  interpreter=$("$python" -c 'import os, sys; print(os.path.realpath(sys.executable))')
  packages=$(echo "$1"/lib/python3.*/site-packages)
  for cpu in Haswell SandyBridge; do  # no AVX-512; no AVX2 (NumPy itself needs more than older ones have)
    there=$(PYTHONPATH=$packages qemu-x86_64 -cpu "$cpu" "$interpreter" "$work/logits.py" "$work/model-$$" 2> "$work/qemu.log") \
      || { cat "$work/qemu.log" >&2; fail "the wheel does not run on $cpu"; }
    [ "${here#* }" = "${there#* }" ] || fail "$cpu: $there, here: $here"
    echo "check_wheel: $cpu runs the kernels ${there%% *}, with the bits of ${here%% *} here"
  done
  rm -r "$work/model-$$"
}

ls dist/dsmoe-*.whl > /dev/null 2>&1 || fail "no wheel in dist/; make wheel builds them"
for wheel in dist/dsmoe-*.whl; do check "$wheel"; done
