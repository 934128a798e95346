#!/usr/bin/env bash
# Every check that runs nothing of the product: style, types, import directions, shell, budgets, generated files, words that must not be here.
# All of them run; the exit status says whether any failed.
set -uo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
cd "$root" || exit 1
bin=$(bash scripts/dev-venv.sh) || exit
export PATH="$bin:$PATH" PYTHONPATH=engine:scripts PYTHONDONTWRITEBYTECODE=1
mapfile -t scripts < <(python -m checks.listing shell)
failed=()

check() {
  local name=$1
  shift
  local output
  if output=$("$@" 2>&1); then
    echo "ok      $name"
  else
    printf 'FAILED  %s\n%s\n' "$name" "$output"
    failed+=("$name")
  fi
}

check 'ruff check' ruff check --quiet --no-cache .
check 'ruff format' ruff format --check --quiet --no-cache .
check 'pyright' pyright
check 'import directions' lint-imports --no-cache
check 'shellcheck' shellcheck --external-sources "${scripts[@]}"
check 'shfmt' shfmt -d -i 2 -ci "${scripts[@]}"
check 'budgets' python -m checks.budgets
check 'forbidden words' python -m checks.words
check 'generated files' python -m checks.documents
check 'what tests show' python -m checks.shown
check 'links and paths' python -m checks.links
check 'figures' python -m checks.figures
check 'the page on GPU speed' python bench/gpu/report.py --check
check 'locks' python -m checks.locks
check 'pin and patches' bash start.sh patches verify
if ((${#failed[@]})); then
  echo "${#failed[@]} checks failed: ${failed[*]}"
  exit 1
fi
echo 'all checks passed'
