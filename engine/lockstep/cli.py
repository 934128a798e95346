"""The command `lockstep`: serve and engine (the child of serve). Parses and hands over; decides nothing."""

import argparse
import sys

from lockstep.config.serving import ServingOptions, add_serving_flags
from lockstep.core.errors import LockstepError

EXIT_USAGE = 2


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
