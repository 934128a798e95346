#!/usr/bin/env bash
# Finds a Python that is recent enough and hands over to `python -m recipe`. PYTHON names the one to take.
set -euo pipefail
scripts=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
recent='import sys; sys.exit(sys.version_info < (3, 11))'
candidates=(python3 python3.14 python3.13 python3.12 python3.11)
[[ -z ${PYTHON:-} ]] || candidates=("$PYTHON")

refuse() { # exit status, code with its meaning, found, needed, do this
  printf '%s\n    found:   %s\n    needed:  %s\n    do this: %s\n' "${@:2}" >&2
  exit "$1"
}

# To Python a colon ends the name of a folder, and to Docker too.
if [[ $scripts == *:* ]]; then
  refuse 2 '[E_CONFIG] a setting or argument is outside what is allowed' "the folder ${scripts%/*}" "a path without ':'" 'move this folder'
fi
for candidate in "${candidates[@]}"; do
  if "$candidate" -I -c "$recent" 2>/dev/null; then
    # Nothing is written beside the sources, and nobody else's packages are seen, nor what lies in the folder it is called from.
    exec env -u PYTHONHOME -u PYTHONINSPECT -u PYTHONPLATLIBDIR PYTHONPATH="$scripts" PYTHONDONTWRITEBYTECODE=1 "$candidate" -s -P -m recipe "$@"
  fi
done
refuse 3 '[E_PYTHON] no Python of at least 3.11 was found' "${PYTHON:+PYTHON=$PYTHON: }$("${candidates[0]}" --version 2>&1 || true)" \
  'Python 3.11 or later' 'install it, or name it: PYTHON=/path/to/python3 ./start.sh'
