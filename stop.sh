#!/usr/bin/env bash
# Lets the running server finish, ends it and packs its logs.
set -eu
root=$(dirname -- "$(readlink -f -- "$0")")
exec bash "$root/scripts/recipe.sh" stop "$@"
