#!/bin/sh
# need.sh TARGET THING WHY: ends `make TARGET` with one honest line when THING (a path or a command) is missing.
target=$1 thing=$2 why=$3
case $thing in
  */*) [ -e "$thing" ] && exit 0 ;;
  *) command -v "$thing" >/dev/null 2>&1 && exit 0 ;;
esac
echo "make $target: not possible: $why" >&2
exit 1
