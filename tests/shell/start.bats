#!/usr/bin/env bats
# start.sh, stop.sh and prepare.sh find a Python and hand over. What they hand over to is tested in tests/recipe.

setup() {
  root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd -P)
  bin="$BATS_TEST_TMPDIR/bin"
  mkdir "$bin"
  for tool in bash env dirname readlink cat; do ln -s "$(command -v "$tool")" "$bin/$tool"; done
}

fake_python() { # name, status of the version question
  printf '#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.1" && exit 0\n[ "$2" = -c ] && exit %s\necho "%s $*"\n' "$2" "$1" >"$bin/$1"
  chmod +x "$bin/$1"
}

@test "without any Python start.sh says its code, what is needed and what to do" {
  PATH="$bin" run "$root/start.sh"
  [ "$status" -eq 3 ]
  [[ "$output" == *"[E_PYTHON]"* ]]
  [[ "$output" == *"needed:"* ]]
  [[ "$output" == *"do this:"* ]]
}

@test "a Python that is too old is passed over and named" {
  fake_python python3 1
  PATH="$bin" run "$root/start.sh"
  [ "$status" -eq 3 ]
  [[ "$output" == *"Python 3.9.1"* ]]
}

@test "a later Python beside an old one is taken" {
  fake_python python3 1
  fake_python python3.12 0
  PATH="$bin" run "$root/start.sh" status
  [ "$status" -eq 0 ]
  [ "$output" = "python3.12 -s -P -m recipe status" ]
}

@test "PYTHON names the one to take" {
  fake_python python3 0
  fake_python mine 0
  PYTHON="$bin/mine" PATH="$bin" run "$root/start.sh"
  [ "$output" = "mine -s -P -m recipe" ]
}

@test "a PYTHON that cannot be taken is named, and no other is taken in its place" {
  fake_python python3 0
  fake_python old 1
  for named in "$bin/old" "$bin/none"; do
    PYTHON="$named" PATH="$bin" run "$root/start.sh"
    [ "$status" -eq 3 ]
    [[ "$output" == *"[E_PYTHON]"*"PYTHON=$named: "* ]]
  done
}

@test "a folder that Python cannot name is told with its code" {
  mkdir -p "$BATS_TEST_TMPDIR/a:b/scripts"
  cp "$root/start.sh" "$BATS_TEST_TMPDIR/a:b"
  cp "$root/scripts/recipe.sh" "$BATS_TEST_TMPDIR/a:b/scripts"
  run "$BATS_TEST_TMPDIR/a:b/start.sh"
  [ "$status" -eq 2 ]
  [[ "$output" == *"[E_CONFIG]"*"$BATS_TEST_TMPDIR/a:b"*"needed:"*"do this:"* ]]
}

@test "stop.sh and prepare.sh hand over their verb" {
  fake_python python3 0
  PATH="$bin" run "$root/stop.sh"
  [ "$output" = "python3 -s -P -m recipe stop" ]
  PATH="$bin" run "$root/scripts/prepare.sh"
  [ "$output" = "python3 -s -P -m recipe prepare" ]
}

@test "words arrive, from any folder" {
  fake_python python3 0
  cd /
  PATH="$bin" run "$root/start.sh" logs "a b"
  [ "$output" = "python3 -s -P -m recipe logs a b" ]
}

@test "an unknown verb is refused with the code of wrong settings" {
  run "$root/start.sh" strat
  [ "$status" -eq 2 ]
  [[ "$output" == *"[E_CONFIG]"* ]]
}

@test "help lists the verbs and touches nothing" {
  run "$root/start.sh" --help
  [ "$status" -eq 0 ]
  for verb in start restart stop prepare status config logs patches; do [[ "$output" == *"$verb"* ]]; done
}

@test "each verb says what it does when asked, and does nothing" {
  mkdir "$BATS_TEST_TMPDIR/empty"
  cd "$BATS_TEST_TMPDIR/empty"
  for words in 'stop.sh --help' 'start.sh logs -h' 'start.sh install-service --help' 'start.sh verify --help' 'start.sh patches -h'; do
    run "$root"/$words
    [ "$status" -eq 0 ]
    [[ "$output" == *"./start.sh "* ]]
  done
  [ -z "$(ls)" ]
}

@test "neither foreign Python variables nor the files of the folder it is called from reach the program" {
  mkdir "$BATS_TEST_TMPDIR/evil"
  echo 'raise SystemExit(77)' >"$BATS_TEST_TMPDIR/evil/argparse.py"
  cp "$BATS_TEST_TMPDIR/evil/argparse.py" "$BATS_TEST_TMPDIR/evil/failure.py"
  cd "$BATS_TEST_TMPDIR/evil"
  PYTHONPATH="$BATS_TEST_TMPDIR/evil" PYTHONHOME=/nowhere run "$root/start.sh" help
  [ "$status" -eq 0 ]
  # One asks for more words after the end, one for libraries of another place.
  for variable in PYTHONINSPECT=1 PYTHONPLATLIBDIR=elsewhere; do
    run env "$variable" "$root/start.sh" help
    [ "$status" -eq 0 ]
    [[ "$output" != *">>>"* ]]
  done
}
