#!/usr/bin/env bash
# Makes the environment that tests and checks run in, once for each state of requirements/dev.lock, and prints its folder of programs.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
venv=$root/.venv
mark=$venv/made-from
# The CPU build of torch in the lock is of Python 3.11, so that one is asked first.
for python in ${PYTHON:+"$PYTHON"} python3.11 python3; do
  "$python" -I -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break
  python=
done
if [[ -z ${python:-} ]]; then
  echo 'tests need Python 3.11 or later: install it, or name it in PYTHON' >&2
  exit 3
fi
wanted=$("$python" -I -c 'import hashlib, sys; print(sys.version, hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest())' \
  "$root/requirements/dev.lock" | tr -d '\n')
exec 9>"$root/.venv.lock"
flock 9
if [[ $(cat "$mark" 2>/dev/null || true) != "$wanted" ]]; then
  if ! "$python" -I -c 'import ensurepip, venv' 2>/dev/null; then
    bash "$root/scripts/debian.sh" python3-venv >&2
  fi
  rm -rf "$venv"
  "$python" -m venv "$venv" >&2
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary=:all: --no-deps \
    --requirement "$root/requirements/dev.lock" >&2
  echo "$wanted" >"$mark"
fi
echo "$venv/bin"
