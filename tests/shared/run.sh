#!/bin/sh
# run.sh SHARED: builds and runs the checks that need the shared folder.
set -eu
shared=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
cmake --build build --target shared_check
DSMOE_SHARED_DIR=$shared build/tests/shared/shared_check
