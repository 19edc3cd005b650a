#!/bin/sh
# need.sh TARGET THING WHY: ends `make TARGET` with one honest line when THING (a path, any:GLOB or a command) is missing.
target=$1 thing=$2 why=$3
case $thing in
  any:*)
    # shellcheck disable=SC2086
    set -- ${thing#any:}
    [ -e "$1" ] && exit 0 ;;
  */*) [ -e "$thing" ] && exit 0 ;;
  *) command -v "$thing" >/dev/null 2>&1 && exit 0 ;;
esac
echo "make $target: not possible: $why" >&2
exit 1
