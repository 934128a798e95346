#!/usr/bin/env bash
# Installs the Debian packages named where root may, and says what to install where not.
set -euo pipefail
if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
  echo "missing: $*; install it first (Debian, Ubuntu: sudo apt-get install $*)" >&2
  exit 3
fi
export DEBIAN_FRONTEND=noninteractive
apt-get install --yes --quiet --no-install-recommends "$@" || {
  apt-get update --quiet
  apt-get install --yes --quiet --no-install-recommends "$@"
}
