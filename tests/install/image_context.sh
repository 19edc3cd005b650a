#!/bin/sh
# image_context.sh CMAKE SOURCE_DIR COMPILER: what .dockerignore lets through is enough for the build of packaging/Dockerfile.
set -eu
cmake=$1 source=$2 compiler=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sed -n 's/^!//p' "$source/.dockerignore" | while read -r path; do
  cp -r "$source/$path" "$work/"
done
[ -f "$work/web/index.html" ] || { echo "the page is not in the context"; exit 1; }
options=$(sed -n 's/^RUN cmake -S \. -B \/build \(.*\) && cmake --build \/build --target dsmoe$/\1/p' "$source/packaging/Dockerfile")
[ -n "$options" ] || { echo "packaging/Dockerfile builds in another way than this test"; exit 1; }
cd "$work"
"$cmake" -S . -B build $options -DCMAKE_CXX_COMPILER="$compiler" > log 2>&1 || { cat log; exit 1; }
"$cmake" --build build --target dsmoe -- -n > log 2>&1 || { cat log; exit 1; }
