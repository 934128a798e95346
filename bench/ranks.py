"""What the patches for two ranks on one host bring on this machine's CPU: decode with the whole series against one patch switched off.

`PYTHONPATH=engine:scripts:tests python bench/ranks.py` writes bench/results/ranks.json. All engines are loaded at once, reply in turn, so
that both sides of a pair see the same machine; medians of pairs count. Replies and final states must be equal, else it stops.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

from fixtures import engines
from fixtures.patched import export
from lockstep.channel.client import EngineClient
from lockstep.core.types import EngineRequest

ROOT = Path(__file__).parents[1]
SIDES = {
    "all": "",
    "without the shared exchange": "LOCKSTEP_SHARED_EXCHANGE",
    "without the plan ring": "LOCKSTEP_PLAN_RING",
    "without placement": "LOCKSTEP_PLACEMENT",
}
TURNS, TOKENS = 24, 96


async def reply(client: EngineClient, turn: int) -> tuple[float, engines.Answer]:
    """Tokens a second between the first and the last token, and the reply."""
    request = EngineRequest(f"turn {turn}", tuple(range(turn, turn + 40)), engines.GREEDY, TOKENS)
    first, tokens, state = 0.0, [], None
    async for event in client.submit(request):
        first = first or time.monotonic()
        tokens += event.token_ids
        state = event.state_hash
    return (len(tokens) - 1) / (time.monotonic() - first), (tuple(tokens), state)


async def measure() -> dict[str, list[float]]:
    """Tokens a second of each side, turn by turn."""
    speeds: dict[str, list[float]] = {side: [] for side in SIDES}
    async with AsyncExitStack() as held:
        clients = {}
        for side, switch in SIDES.items():
            os.environ.update({switch: "off"} if switch else {})
            clients[side] = await held.enter_async_context(engines.engine("--ranks", "2", "--drafter", "none", "--kept-gib", "0"))
            os.environ.pop(switch, None)
        for turn in range(-2, TURNS):
            replies = {side: await reply(client, max(turn, 0)) for side, client in clients.items()}
            if len({answer for _, answer in replies.values()}) != 1:
                raise SystemExit(f"turn {turn}: replies differ between {', '.join(SIDES)}")
            for side, (speed, _) in replies.items():
                speeds[side] += [speed] if turn >= 0 else []
    return speeds


def main() -> int:
    """Measure, write, print."""
    with tempfile.TemporaryDirectory() as place:
        os.environ["PYTHONPATH"] = str(export(Path(place) / "engine"))
        os.environ["OMP_NUM_THREADS"] = "1"
        began = os.getloadavg()[0]
        speeds = asyncio.run(measure())
    pairs = {side: [all_ / one for all_, one in zip(speeds["all"], speeds[side], strict=True)] for side in list(SIDES)[1:]}
    found = {
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
        "load_at_start": round(began, 1),
        "turns": TURNS,
        "tokens_a_turn": TOKENS,
        "tokens_a_second": {side: round(statistics.median(values), 1) for side, values in speeds.items()},
        "all_patches_over": {
            side: {"median": round(statistics.median(values), 3), "quartiles": [round(at, 3) for at in statistics.quantiles(values)[::2]]}
            for side, values in pairs.items()
        },
    }
    (ROOT / "bench/results/ranks.json").write_text(json.dumps(found, indent=1) + "\n")
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
