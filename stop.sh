#!/usr/bin/env bash
# Lets the running server finish, ends it and packs its logs.
set -eu
here=$(readlink -f -- "$0")
exec bash "${here%/*}/scripts/recipe.sh" stop "$@"
