#!/usr/bin/env bash
# Builds and fetches everything that start.sh needs; serves nothing.
set -eu
here=$(readlink -f -- "$0")
exec bash "${here%/*}/recipe.sh" prepare "$@"
