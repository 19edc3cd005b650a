#!/bin/sh
# Runs clang-tidy (.clang-tidy) over every source that build/compile_commands.json knows, or over those named.
set -eu
cd "$(dirname "$0")/.."
if [ $# -eq 0 ]; then
  set -- $(git ls-files 'src/*.cc' 'apps/*.cc')
fi
printf '%s\n' "$@" | xargs -P "$(nproc)" -n 4 clang-tidy -p build --quiet
