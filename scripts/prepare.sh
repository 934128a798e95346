#!/usr/bin/env bash
# Builds and fetches everything that start.sh needs; serves nothing.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
exec bash "$root/scripts/recipe.sh" prepare "$@"
