"""`python -m peers`: one JSON line, `cause` ("" where all is well) and `gib_s` by stage. Exit status 6 if bytes or sums do not pass."""

from __future__ import annotations

import argparse
import json
import sys

EXIT_PEERS = 6


def main(argv: list[str] | None = None) -> int:
    """Probe and tell; returns the exit status."""
    parser = argparse.ArgumentParser(prog="peers", description="Do two devices get each other's bytes?", allow_abbrev=False)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="seconds each stage may take")
    parser.add_argument("--no-direct", action="store_true", help="leave out direct copies between the devices")
    parsed = parser.parse_args(argv)
    from peers.probe import STAGES, copy, probe

    stages = [stage for stage in STAGES[parsed.device] if not (parsed.no_direct and stage.act is copy)]
    verdict = probe(parsed.device, parsed.timeout, stages)
    sys.stdout.write(json.dumps({"cause": verdict.cause, "gib_s": verdict.gib_s}) + "\n")
    return EXIT_PEERS if verdict.cause else 0


if __name__ == "__main__":
    sys.exit(main())
