"""What the front process adds: to the first token and to a round, measured against a scripted engine that computes nothing.

`PYTHONPATH=engine:tests python bench/server_overhead.py` prints JSON. First token: a keep-alive client's wait for the first byte of a
stream, less the wait of a caller that sits on the channel itself. Round: processor time of the front process over all rounds of
`STREAMS` streams that run together.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fixtures.fronts import FIXTURES, TOKENIZER, Front, end_front, start_front
from lockstep.channel.client import EngineClient
from lockstep.core.types import EngineRequest, Sampling

STREAMS = 4
ROUNDS = 1000
FIRST_TOKENS = 300
SCRIPT: dict[str, Any] = {"rounds": [TOKENIZER.encode("a")] * ROUNDS, "context": 8192}
PATH = "/v1/chat/completions"
BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "What is the capital of France? Answer in one word."}],
    "stream": True,
    "loop_guard": False,
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        front = start_front(Path(folder), SCRIPT)
        try:
            front.wait_for("/health/ready", 200)
            spent = processor_s(front.process.pid)
            through = first_tokens(front)
            spent = processor_s(front.process.pid) - spent
            direct = asyncio.run(direct_first_tokens(Path(folder)))
            figures = {
                "first_token_through_ms": summary(through),
                "first_token_channel_ms": summary(direct),
                "first_token_added_ms": round((statistics.median(through) - statistics.median(direct)) * 1e3, 3),
                "front_cpu_ms_per_short_request": round(spent / FIRST_TOKENS * 1e3, 3),
                "streams": STREAMS,
                **rounds(front),
            }
        finally:
            end_front(front)
    json.dump(figures, sys.stdout, indent=2)
    sys.stdout.write("\n")


def summary(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {"median": round(statistics.median(ordered) * 1e3, 3), "p95": round(ordered[int(len(ordered) * 0.95)] * 1e3, 3)}


def first_tokens(front: Front) -> list[float]:
    connection = http.client.HTTPConnection("127.0.0.1", front.port)
    body = json.dumps(BODY | {"max_tokens": 1})
    taken = []
    for _ in range(FIRST_TOKENS):
        began = time.perf_counter()
        connection.request("POST", PATH, body)
        reply = connection.getresponse()
        reply.read(1)
        taken.append(time.perf_counter() - began)
        reply.read()
    return taken


async def direct_first_tokens(folder: Path) -> list[float]:
    path = folder / "direct.json"
    path.write_text(json.dumps(SCRIPT))
    engine = EngineClient([sys.executable, str(FIXTURES / "scripted_engine.py"), str(path)])
    await engine.start()
    await engine.wait_ready()
    taken = []
    for number in range(FIRST_TOKENS):
        began = time.perf_counter()
        async for _ in engine.submit(EngineRequest(str(number), tuple(range(20)), Sampling(), 1)):
            taken.append(time.perf_counter() - began)
    await engine.shutdown(0.0)
    return taken


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rounds(front: Front) -> dict[str, float]:
    def stream(_: int) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", front.port)
        connection.request("POST", PATH, json.dumps(BODY))
        return connection.getresponse().read().count(b"data: ")

    before, began = processor_s(front.process.pid), time.perf_counter()
    with ThreadPoolExecutor(STREAMS) as pool:
        events = sum(pool.map(stream, range(STREAMS)))
    spent, wall = processor_s(front.process.pid) - before, time.perf_counter() - began
    return {
        "events": events,
        "front_cpu_ms_per_round_of_one_stream": round(spent / (ROUNDS * STREAMS) * 1e3, 4),
        "wall_ms_per_round_of_all_streams": round(wall / ROUNDS * 1e3, 4),
    }


if __name__ == "__main__":
    main()
