#!/usr/bin/env bash
# The package's tests with AddressSanitizer in the binding. ENVIRONMENT: a virtual environment with nanobind, numpy and pytest, and
# perhaps torch; else that of `make wheel` is taken.
set -euo pipefail
cd "$(dirname "$0")/.."
env=${ENVIRONMENT:-build/wheel-env-cpython-311}
"$env/bin/python" -c 'import nanobind, numpy, pytest' 2> /dev/null || "$env/bin/pip" install -q nanobind numpy pytest
cmake -S . -B build-python-asan -G Ninja -DCMAKE_BUILD_TYPE=Release -DDSMOE_PYTHON=ON -DDSMOE_TESTS=OFF \
  -DDSMOE_PYTHON_SANITIZE=address -DPython_EXECUTABLE="$PWD/$env/bin/python" > /dev/null
cmake --build build-python-asan -j "${JOBS:-$(nproc)}" --target _engine
package=build-python-asan/package/dsmoe
mkdir -p "$package"
cp python/dsmoe/*.py build-python-asan/python/_engine*.so "$package"
# The interpreter itself is not sanitized and leaks on purpose; what is freed and used again, or written past its end, shows.
LD_PRELOAD=$("${CXX:-c++}" -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc \
  PYTHONPATH=build-python-asan/package "$env/bin/python" -m pytest -q -rs -p no:cacheprovider python/tests "$@"
echo "check_sanitized: ok"
