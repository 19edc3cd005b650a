#!/bin/sh
# Runs clang-tidy (.clang-tidy) over sources: --all, those that differ from a commit (--since REV), or those named. A changed
# header counts as the source of the same name.
set -eu
cd "$(dirname "$0")/.."
case ${1:-} in
  --all) set -- $(git ls-files 'src/*.cc' 'apps/*.cc') ;;
  --since)
    changed=$(git diff --name-only --diff-filter=d "$2" -- 'src/*.cc' 'apps/*.cc' 'src/*.h' 'apps/*.h')
    set -- $(for file in $changed; do [ -f "${file%.h}" ] || file=${file%.h}; echo "${file%.cc}.cc"; done | sort -u)
    ;;
esac
sources=$(for file in "$@"; do [ -f "$file" ] && echo "$file"; done)
[ -n "$sources" ] || { echo "tidy: no source differs"; exit 0; }
echo "$sources" | xargs -P "$(nproc)" -n 4 clang-tidy -p build --quiet
