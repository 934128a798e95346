#!/usr/bin/env bash
# Finds a Python that is recent enough and hands over to `python -m recipe`. PYTHON names one to take.
set -euo pipefail
scripts=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
recent='import sys; sys.exit(sys.version_info < (3, 11))'
for candidate in ${PYTHON:+"$PYTHON"} python3 python3.14 python3.13 python3.12 python3.11; do
  if "$candidate" -I -c "$recent" 2>/dev/null; then
    # Nothing is written beside the sources, and nobody else's packages are seen.
    exec env -u PYTHONHOME PYTHONPATH="$scripts" PYTHONDONTWRITEBYTECODE=1 "$candidate" -s -m recipe "$@"
  fi
done
{
  echo '[E_PYTHON] no Python of at least 3.11 was found'
  echo "    found:   $(python3 --version 2>&1 || true)"
  echo '    needed:  Python 3.11 or later'
  echo '    do this: install it, or name it: PYTHON=/path/to/python3 ./start.sh'
} >&2
exit 3
