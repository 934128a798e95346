"""Evaluates the user's trusted `scripts/local.sh` in a clean Bash. Knows no setting by name."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

LIMIT_S = 10
PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "TMPDIR", "XDG_CACHE_HOME")
DONE = "__done"

# Names known before the file is read are remembered, so that a setting counts as set even where the file sets its default again.
DUMP = r"""
exec 3>&1 1>&2
bash -n "$2" || exit
source "$1"
__known=" $(compgen -v | tr '\n' ' ') __known __name "
source "$2"
while read -r __name; do
  [[ $__known == *" $__name "* || $__name == BASH* || $__name == _ ]] || printf '%s\0%s\0' "$__name" "${!__name-}" >&3
done < <(compgen -v)
printf '%s\0' __done >&3
"""


def assignments(file: Path, defaults: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that `file` sets, name to value. `defaults` is sourced before it, so that the file can compute from them.

    Raises ValueError with one line of reason: a syntax error, an `exit` in the file, or no end within LIMIT_S.
    """
    clean = {name: environment[name] for name in PASSED_ON if name in environment}
    command = ["bash", "--noprofile", "--norc", "-c", DUMP, "local.sh", str(defaults), str(file)]
    try:
        done = subprocess.run(command, env=clean, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, check=False)
    except OSError as error:
        raise ValueError(f"Bash cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired:
        raise ValueError(f"it did not end within {LIMIT_S} s") from None
    parts = done.stdout.decode("utf-8", "replace").split("\0")
    if parts[-2:] != [DONE, ""]:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise ValueError(f"Bash ended with status {done.returncode}" + (f": {last[-1]}" if last else ""))
    return dict(zip(parts[0:-2:2], parts[1:-2:2], strict=True))
