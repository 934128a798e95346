#!/usr/bin/env bash
# Builds and fetches everything that start.sh needs; serves nothing.
set -eu
root=$(dirname -- "$(dirname -- "$(readlink -f -- "$0")")")
exec bash "$root/scripts/recipe.sh" prepare "$@"
