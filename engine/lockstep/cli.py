"""The command `lockstep`: serve, engine (the child of serve), and probe-peers. Parses and hands over; decides nothing."""

from __future__ import annotations

import argparse
import json
import sys

from lockstep.config.serving import ServingOptions, add_serving_flags
from lockstep.core.errors import LockstepError

EXIT_USAGE, EXIT_PEERS = 2, 6


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    parsed = _parser().parse_args(argv)
    try:
        return parsed.run(parsed)
    except LockstepError as error:
        print(f"lockstep: {error}", file=sys.stderr)
        return EXIT_USAGE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lockstep", description="Exact inference for GLM-5.3-Flash", allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="serve a checkpoint behind an OpenAI-compatible API", allow_abbrev=False)
    add_serving_flags(serve)
    serve.set_defaults(run=_serve)
    engine = commands.add_parser("engine", help="the engine process; started by serve", allow_abbrev=False)
    add_serving_flags(engine)
    engine.add_argument("--channel-fd", type=int, required=True, metavar="N", help="inherited socket to the front process")
    engine.add_argument("--rank", type=int, default=0, metavar="N", help="which rank this is; rank 0 starts the others")
    engine.set_defaults(run=_engine)
    peers = commands.add_parser("probe-peers", help="do two devices get each other's bytes? Exit status 6 if not", allow_abbrev=False)
    peers.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    peers.add_argument("--timeout", type=float, default=60.0, metavar="S", help="seconds each stage may take")
    peers.add_argument("--no-direct", action="store_true", help="leave out direct copies between the devices")
    peers.set_defaults(run=_probe_peers)
    return parser


def _serve(parsed: argparse.Namespace) -> int:
    from lockstep.server import serve

    return serve(ServingOptions.from_namespace(parsed))


def _engine(parsed: argparse.Namespace) -> int:
    # The front process must stay free of torch, so the engine is imported only in its own process.
    from lockstep.channel.child import ChildChannel
    from lockstep.engine import run_engine, run_rank

    options, channel = ServingOptions.from_namespace(parsed), ChildChannel.from_fd(parsed.channel_fd)
    return run_rank(options, parsed.rank, channel) if parsed.rank else run_engine(options, channel)


def _probe_peers(parsed: argparse.Namespace) -> int:
    from lockstep.run.peers import STAGES, copy, probe

    stages = [stage for stage in STAGES[parsed.device] if not (parsed.no_direct and stage.act is copy)]
    verdict = probe(parsed.device, parsed.timeout, stages)
    print(json.dumps({"cause": verdict.cause, "gib_s": verdict.gib_s}), flush=True)
    return EXIT_PEERS if verdict.cause else 0
