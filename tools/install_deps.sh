#!/bin/sh
# install_deps.sh GROUP...: installs the Debian packages of those groups (tools/debian-packages.txt) that are missing.
set -eu
list=$(dirname "$0")/debian-packages.txt

wanted=
for group in "$@"; do
  names=$(sed -n "s/^$group \([^ ]*\).*/\1/p" "$list")
  [ -n "$names" ] || { echo "install_deps: no group '$group' in $list" >&2; exit 2; }
  wanted="$wanted $names"
done

if ! command -v dpkg-query >/dev/null 2>&1; then
  echo "dsmoe: not a Debian system; going on, but the build needs what these packages hold:" $wanted >&2
  exit 0
fi

# ":any" would match other architectures; a package counts when its own architecture or "all" is installed.
# shellcheck disable=SC2086
installed=" $(dpkg-query -W -f='${db:Status-Status}=${Package} ' $wanted 2>/dev/null || true)"
missing=
for name in $wanted; do
  case $installed in
    *" installed=$name "*) ;;
    *) missing="$missing $name" ;;
  esac
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ]; then
  as_root=
elif command -v sudo >/dev/null 2>&1 && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
  as_root=sudo
else
  echo "dsmoe: missing Debian packages; as root run: apt-get install$missing" >&2
  exit 1
fi

echo "dsmoe: installing$missing" >&2
apt() {
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@" >&2
}
# A machine that has never fetched its package lists cannot install; one that has need not fetch them again.
# shellcheck disable=SC2086
if ! apt install -y --no-install-recommends $missing; then
  apt update && apt install -y --no-install-recommends $missing || {
    echo "dsmoe: could not install$missing; see the messages of apt-get above" >&2
    exit 1
  }
fi
