#!/bin/sh
# The demo behind `make demo`.
set -eu
echo "make demo: not possible yet: the commands it shows (info, logits) are not in build/dsmoe" >&2
exit 1
