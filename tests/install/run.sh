#!/bin/sh
# run.sh CMAKE BUILD_DIR SOURCE_DIR COMPILER: install, build examples/ against the installation, run them.
set -eu
cmake=$1 build=$2 source=$3 compiler=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$cmake" --install "$build" --prefix "$work/prefix" >"$work/install.log" || { cat "$work/install.log"; exit 1; }
[ -x "$work/prefix/bin/dsmoe" ] || { echo "bin/dsmoe was not installed"; exit 1; }
for file in share/man/man1/dsmoe.1 share/bash-completion/completions/dsmoe share/zsh/site-functions/_dsmoe share/fish/vendor_completions.d/dsmoe.fish; do
  [ -s "$work/prefix/$file" ] || { echo "$file was not installed"; exit 1; }
done
if find "$work/prefix/include" -name '*test*' -o -name scratch_folder.h | grep .; then
  echo "test files were installed"
  exit 1
fi
# How this program is hardened is nobody else's business.
targets=$(find "$work/prefix" -name 'dsmoeTargets*.cmake')
[ -n "$targets" ] || { echo "no targets were exported"; exit 1; }
if grep -E 'stack-protector|FORTIFY|cf-protection|GLIBCXX|relro' $targets; then
  echo "flags of this build are in the exported targets"
  exit 1
fi
# A copy, so that nothing of the source tree can be found by accident.
cp -r "$source/examples" "$work/examples"
"$cmake" -G Ninja -S "$work/examples" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DCMAKE_CXX_COMPILER="$compiler"
"$cmake" --build "$work/build"
"$work/build/moe_layer"
