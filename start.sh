#!/usr/bin/env bash
# From nothing to a live server: ./start.sh [VERB]. `./start.sh help` lists the verbs, DRY_RUN=1 only shows what would be done.
set -eu
here=$(readlink -f -- "$0")
exec bash "${here%/*}/scripts/recipe.sh" "$@"
