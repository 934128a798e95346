"""`python -m tuning`: see the package's own words. Parses and hands over; decides nothing."""

import argparse
import json
import sys
from pathlib import Path

EXIT_CANNOT_LOAD, EXIT_KERNEL = 3, 5


def main(argv: list[str] | None = None) -> int:
    """Tune and tell; returns the exit status."""
    parser = argparse.ArgumentParser(prog="tuning", description="Finds the fastest launches for a model on this device", allow_abbrev=False)
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="checkpoint folder")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="launch table to write, or to go on with")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--dense", default="bf16", choices=("bf16", "fp8", "q4"), help="form of large dense matrices, as served")
    parser.add_argument("--ranks", type=int, default=1, choices=(1, 2), help="processes that will share the model")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="draws of inputs on which bits are compared")
    parsed = parser.parse_args(argv)
    from tuning.command import CannotLoad, KernelFault, tune

    try:
        verdict, status = tune(parsed.model, parsed.out, parsed.device, parsed.dense, parsed.ranks, parsed.seeds, _say), 0
    except KernelFault as error:
        _say(str(error))
        verdict, status = {"complete": False, "cause": f"a kernel failed: {str(error).splitlines()[0]}"}, EXIT_KERNEL
    except CannotLoad as error:
        verdict, status = {"complete": False, "cause": str(error)}, EXIT_CANNOT_LOAD
    _say(json.dumps({"table": str(parsed.out), **verdict}))
    return status


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
