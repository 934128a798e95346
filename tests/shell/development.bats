#!/usr/bin/env bats
# The scripts that developers and CI start.

setup() {
  root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd -P)
  bare=$BATS_TEST_TMPDIR/bin
  mkdir -p "$bare"
  for tool in bash env dirname id cat; do
    ln -s "$(command -v "$tool")" "$bare/$tool"
  done
}

@test "every script a user starts is executable and names its interpreter" {
  for script in start.sh stop.sh scripts/prepare.sh scripts/test.sh scripts/check.sh .ci/run; do
    [ -x "$root/$script" ]
    [ "$(head -n 1 "$root/$script")" = '#!/usr/bin/env bash' ]
  done
}

@test "packages are not installed for a user who may not, but named" {
  printf '#!/usr/bin/env bash\necho 1000\n' >"$bare/not-root"
  rm "$bare/id"
  mv "$bare/not-root" "$bare/id"
  chmod +x "$bare/id"
  run env -i PATH="$bare" bash "$root/scripts/debian.sh" bats
  [ "$status" -eq 3 ]
  [[ "$output" == *'apt-get install bats'* ]]
}

@test "tests without a recent Python are refused with what to install" {
  run env -i PATH="$bare" bash "$root/scripts/dev-venv.sh"
  [ "$status" -eq 3 ]
  [[ "$output" == *'Python 3.11 or later'* ]]
}
