"""The Grafana dashboard against a real Prometheus that scrapes a server with traffic: every query of every panel has an answer."""

from __future__ import annotations

import json
import math
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from fixtures.fronts import ROOT, Front, rounds
from fixtures.ports import free_port

DASHBOARD = json.loads((ROOT / "docker" / "grafana.json").read_text())
QUERIES = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]]
BODY = {"messages": [{"role": "user", "content": "hi"}], "loop_guard": False}
CONFIG = """
global: {{scrape_interval: 500ms, scrape_timeout: 400ms}}
scrape_configs:
  - job_name: lockstep
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


def answer(http: httpx.Client, expression: str) -> list[Any]:
    reply = http.get("/api/v1/query", params={"query": expression.replace("$__rate_interval", "30s")}).json()
    assert reply["status"] == "success", (expression, reply)
    return reply["data"]["result"]


def has_figures(http: httpx.Client, expression: str) -> bool:
    found = answer(http, expression)
    return bool(found) and all(math.isfinite(float(one["value"][1])) for one in found)


@pytest.mark.prometheus
def test_every_query_of_the_dashboard_has_an_answer_and_counters_move_during_a_reply(serve: Callable[..., Front], tmp_path: Path) -> None:
    front = serve({"rounds": rounds(*["word "] * 3000), "delay_s": 0.01})
    config, port = tmp_path / "prometheus.yml", free_port()
    config.write_text(CONFIG.format(port=front.port))
    command = [
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        streamed = BODY | {"stream": True}
        with (
            httpx.Client(base_url=f"http://127.0.0.1:{port}") as http,
            front.http.stream("POST", "/v1/chat/completions", json=streamed) as reply,
        ):
            seen: set[str] = set()
            for _ in reply.iter_text():
                time.sleep(0.05)
                try:
                    seen |= {one["value"][1] for one in answer(http, "lockstep_generation_tokens_total")}
                except httpx.TransportError:
                    continue
                if len(seen) > 2:
                    break
            assert len(seen) > 2
            reply.close()
            for _ in range(2):
                assert front.http.post("/v1/chat/completions", json=BODY | {"max_tokens": 20}).status_code == 200
            until = time.monotonic() + 20
            while lacking := [query for query in QUERIES if not has_figures(http, query[1])]:
                assert time.monotonic() < until, lacking
                time.sleep(0.2)
    finally:
        server.terminate()
        server.wait(timeout=20)


def test_panels_ask_for_nothing_else_than_our_own_families() -> None:
    assert len(QUERIES) > 15
    assert all("lockstep_" in expression and "vllm:" not in expression for _, expression in QUERIES)
