#!/usr/bin/env bash
# Runs the tests on the CPU. Arguments go to pytest; without any, the shell tests run too. The last line is pytest's own summary.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
cd "$root"
command -v git >/dev/null || bash scripts/debian.sh git >&2
bin=$(bash scripts/dev-venv.sh)
export PATH="$bin:$PATH" OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1
status=0
if [[ $# == 0 ]]; then
  command -v bats >/dev/null || bash scripts/debian.sh bats >&2
  bats tests/shell || status=1
fi
"$bin/python" -m pytest "$@" || status=$?
exit "$status"
