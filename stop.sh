#!/usr/bin/env bash
# Lets the running server finish, ends it and packs its logs.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
exec bash "$root/scripts/recipe.sh" stop "$@"
