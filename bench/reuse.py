"""Time to the first token of a conversation's next turn, with the earlier turns kept and without, over the whole product on the CPU.

`PYTHONPATH=engine python bench/reuse.py` starts a server on the embedded checkpoint, writes JSON to bench/results/reuse.json and prints
it. A pair is one prompt asked twice: warm, after its conversation's earlier turn, and cold, under a `cache_salt` that nobody used. Which
comes first alternates; the warm one is then asked again. Stops with an error if replies differ or anything was not cold or warm as meant.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
TURN_WORDS = 90
START_S = 120
WORDS = (
    *("river", "stone", "garden", "seven", "window", "paper", "music", "horse", "bread", "winter", "letter", "market", "silver"),
    *("bridge", "sugar", "forest", "evening", "copper", "island", "teacher", "mirror", "thunder", "basket", "candle", "compass"),
)

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client saw: seconds to the first event with text, and the reply's hash, prompt and cached tokens, queue and prompt seconds."""

    first_s: float
    sha: str
    prompt: int
    cached: int
    engine_s: float


class Client:
    """One keep-alive connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)

    def ask(self, messages: list[Message], salt: str) -> tuple[Answer, str]:
        """The answer to a conversation, and its text."""
        body = {
            "messages": messages,
            "max_tokens": 24,
            "temperature": 0,
            "ignore_eos": True,
            "cache_salt": salt,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        content = json.dumps(body)
        began = time.perf_counter()
        self._connection.request("POST", "/v1/chat/completions", content, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        if response.status != 200:
            raise SystemExit(response.read().decode())
        first_s, text, figures, usage = 0.0, "", {}, {}
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            first_s = first_s or time.perf_counter() - began
            figures, usage = event.get("lockstep") or figures, event.get("usage") or usage
            text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
        details = usage["prompt_tokens_details"]["cached_tokens"]
        return Answer(first_s, figures["token_sha"], usage["prompt_tokens"], details, figures["queued_s"] + figures["prefill_s"]), text


def words(draws: Random, count: int) -> str:
    return " ".join(draws.choice(WORDS) for _ in range(count))


def conversation(draws: Random, client: Client, tokens: int, salt: str) -> list[Message]:
    """Turns of about `tokens` tokens, as a client would have them after its last question was answered. The replies are made up."""
    messages: list[Message] = [{"role": "system", "content": "You are a careful assistant. " + words(draws, 60)}]
    while True:
        messages.append({"role": "user", "content": words(draws, TURN_WORDS)})
        answer, text = client.ask(messages, salt) if len(messages) % 8 == 0 else (None, "")
        if answer and answer.prompt >= tokens:
            return [*messages, {"role": "assistant", "content": text}]
        messages.append({"role": "assistant", "content": words(draws, TURN_WORDS)})


def pair(at: int, draws: Random, client: Client, tokens: int) -> tuple[Answer, Answer, Answer]:
    """Warm and cold answer to the same next turn, and the warm one asked for again."""
    messages = [*conversation(draws, client, tokens, f"warm {at}"), {"role": "user", "content": "And then? " + words(draws, 12)}]
    names = ("warm", "cold") if at % 2 else ("cold", "warm")
    found = {name: client.ask(messages, f"{name} {at}")[0] for name in names}
    warm, cold, again = found["warm"], found["cold"], client.ask(messages, f"warm {at}")[0]
    if again.sha != cold.sha or again.cached != again.prompt:
        raise SystemExit(f"pair {at}: again {again}, cold {cold}; needed: equal replies, the whole prompt cached")
    if warm.sha != cold.sha or cold.cached or not warm.cached:
        raise SystemExit(f"pair {at}: warm {warm}, cold {cold}; needed: equal replies, nothing cached cold, something warm")
    return warm, cold, again


def summary(values: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values) * 1e3, 2), "least": round(min(values) * 1e3, 2), "most": round(max(values) * 1e3, 2)}


def serve(model: Path, flags: list[str]) -> tuple[subprocess.Popen[bytes], int]:
    """A server that answers, and its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    line = [sys.executable, "-m", "lockstep", "serve", "--model", str(model), "--port", str(port), *flags]
    process = subprocess.Popen(line, env=os.environ | {"PYTHONPATH": str(ROOT / "engine")}, stdout=subprocess.DEVNULL)
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/health/ready")
            if connection.getresponse().status == 200:
                return process, port
        except OSError:
            pass
        time.sleep(0.2)
    process.kill()
    raise SystemExit("the server did not become ready")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=ROOT / "embedded")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "reuse.json")
    parser.add_argument("flags", nargs="*", help="further flags of the server, after --")
    asked = parser.parse_args()
    flags = ["--context", str(2 * asked.tokens), "--parallel", "4", *asked.flags]
    process, port = serve(asked.model, flags)
    try:
        client, draws = Client(port), Random(1)
        pairs = [pair(at, draws, client, asked.tokens) for at in range(asked.pairs)]
    finally:
        process.terminate()
        process.wait()
    figures: dict[str, Any] = {
        "device": "cpu",
        "machine": platform.machine(),
        "torch": torch.__version__,
        "load_average": round(os.getloadavg()[0], 1),
        "flags": flags,
        "pairs": len(pairs),
        "prompt_tokens": statistics.median(cold.prompt for _, cold, _ in pairs),
        "cached_tokens": statistics.median(warm.cached for warm, _, _ in pairs),
        "cold_first_token_ms": summary([cold.first_s for _, cold, _ in pairs]),
        "warm_first_token_ms": summary([warm.first_s for warm, _, _ in pairs]),
        "asked_again_first_token_ms": summary([again.first_s for _, _, again in pairs]),
        "warm_engine_ms": summary([warm.engine_s for warm, _, _ in pairs]),
        "speedup_of_each_pair": [round(cold.first_s / warm.first_s, 1) for warm, cold, _ in pairs],
        "median_speedup": round(statistics.median(cold.first_s / warm.first_s for warm, cold, _ in pairs), 1),
        "equal_replies": len(pairs),
    }
    asked.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
