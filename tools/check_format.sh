#!/bin/sh
# Checks that every C++ and CUDA file is formatted as .clang-format says; with --fix, formats them.
set -eu
cd "$(dirname "$0")/.."
files=$(git ls-files --cached --others --exclude-standard -- src apps python tests fuzz bench examples 2>/dev/null ||
        find src apps python tests fuzz bench examples -type f 2>/dev/null)
# Files that git lists but that were just deleted are no business of ours.
files=$(for file in $files; do
  case $file in *.h | *.cc | *.cu | *.cuh) [ -f "$file" ] && echo "$file" ;; esac
done)
if [ "${1:-}" = --fix ]; then
  echo "$files" | xargs clang-format -i
  exit 0
fi
command -v clang-format > /dev/null || { echo "check_format: clang-format is not installed" >&2; exit 1; }
wrong=$(echo "$files" | xargs -P "$(nproc)" -n 32 clang-format --dry-run -Werror 2>&1 |
        sed -n 's/^\([^:]*\):.*clang-format-violations.*/\1: not formatted/p' | sort -u)
if [ -n "$wrong" ]; then
  echo "$wrong"
  echo "check_format: $(echo "$wrong" | wc -l) files are not formatted; run 'make format'" >&2
  exit 1
fi
echo "check_format: $(echo "$files" | wc -l) files are formatted"
