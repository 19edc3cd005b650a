#!/bin/sh
# hardened.sh PROGRAM LIBRARY: program and static library were built as cmake/DsmoeHardening.cmake says.
set -u
program=$1 library=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
readelf -W -h -l -d -n --dyn-syms "$program" > "$work/is" 2> "$work/err" || { cat "$work/err"; exit 1; }
failed=0
need() { # PATTERN WHAT
  grep -Eq "$1" "$work/is" || { echo "$program: $2"; failed=1; }
}
need '^ *Type: +DYN' 'no position-independent executable'
need 'FLAGS_1.* NOW( |$).*PIE' 'symbols are bound late (-z now), or it is no PIE'
need '^ *GNU_RELRO ' 'tables of addresses stay writable (-z relro)'
need '^ *GNU_STACK .* RW +0x' 'its stack is executable'
need '__stack_chk_fail' 'no stack protector'
need '__(memcpy|memmove|snprintf|vsnprintf|fprintf|read|recv)_chk' 'no _FORTIFY_SOURCE'
# A program has IBT and SHSTK only where the C library has them too: asked of our own objects.
if [ "$(uname -m)" = x86_64 ]; then
  readelf -n "$library" > "$work/objects"
  num_objects=$(grep -c '^File: ' "$work/objects")
  num_protected=$(grep -c 'x86 feature:.*IBT, SHSTK' "$work/objects")
  [ "$num_objects" = "$num_protected" ] || {
    echo "$library: of $num_objects objects $num_protected have control-flow protection"
    failed=1
  }
fi
exit $failed
