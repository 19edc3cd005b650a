#!/usr/bin/env bash
# Builds dist/*.whl: one for CPython 3.11 and, where there is an interpreter from 3.12 on, one for all of those (stable ABI).
# PYTHON and PYTHON_STABLE name the interpreters; without PYTHON_STABLE the newest one of PATH or pyenv is taken.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
stable=${PYTHON_STABLE:-}

is_stable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2> /dev/null; }
if [ -z "$stable" ]; then
  for candidate in python3.14 python3.13 python3.12 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-9]*/bin/python3; do
    if command -v "$candidate" > /dev/null && is_stable "$candidate"; then stable=$candidate; break; fi
  done
fi

build() { # INTERPRETER
  local tag env raw
  tag=$("$1" -c 'import sys; print(sys.implementation.cache_tag)')
  env=build/wheel-env-$tag raw=build/wheel-$tag
  if ! cmp -s python/requirements-build.txt "$env/done"; then
    rm -rf "$env"
    "$1" -m venv "$env"
    "$env/bin/pip" install -q --disable-pip-version-check -r python/requirements-build.txt
    cp python/requirements-build.txt "$env/done"
  fi
  rm -rf "$raw"
  PATH="$PWD/$env/bin:$PATH" CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-$(nproc)} \
    "$env/bin/pip" wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w "$raw" ./python
  # The shared libraries that no Linux promises come into the wheel; the tag says the oldest system that runs it.
  PATH="$PWD/$env/bin:$PATH" "$env/bin/auditwheel" repair --strip -w dist "$raw"/dsmoe-*.whl > "$raw/auditwheel.log" 2>&1 || { cat "$raw/auditwheel.log" >&2; exit 1; }
}

mkdir -p build dist
rm -f dist/dsmoe-*.whl
build "$python"
if [ -z "$stable" ]; then
  echo "wheel: no Python from 3.12 on was found, so there is no stable-ABI wheel (PYTHON_STABLE names one)" >&2
elif ! is_stable "$python"; then
  build "$stable"
fi
ls -l dist/*.whl
