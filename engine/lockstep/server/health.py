"""`/health` (is it alive), `/health/ready` (can it serve), `/ping`, `/version`. Never waits on the engine."""

import time
from typing import Any

from fastapi import APIRouter, Request

import lockstep
from lockstep.channel.client import EngineState
from lockstep.core.messages import Ready, Snapshot
from lockstep.server.connection import MAX_CONNECTIONS
from lockstep.server.deployment import Deployment, deployment
from lockstep.server.documents import Health, Readiness, Version, errors
from lockstep.server.stream import Json

router = APIRouter(tags=["health"])
_DOWN = ("dead", "stalled")
_FIGURES = {
    "requests_running": "running", "queued": "waiting", "queued_tokens": "waiting_tokens", "pauses_total": "pauses_total",
    "pool_free_tokens": "pool_free_tokens", "prompt_tokens_total": "prompt_tokens_total", "rounds_total": "steps_total",
    "completion_tokens_total": "generated_tokens_total", "drafted_total": "drafted_tokens_total", "accepted_total": "accepted_tokens_total",
    "cached_tokens_total": "kept_hit_tokens_total", "kept_prompts": "kept_prompts", "kept_bytes": "kept_bytes",
}  # fmt: skip
_KEPT = ("bytes", "disk_bytes", "asked_tokens_total", "hit_tokens_total", "spilled_total", "returned_total", "lost_total")


@router.get("/health", response_model=Health, responses={503: {"model": Health}})
@router.get("/v1/health", response_model=Health, responses={503: {"model": Health}}, include_in_schema=False)
async def health(request: Request) -> Json:
    """200 while the server lives, loading included; 503 once the engine is dead or stuck. Open to all, reduced without a key."""
    site = deployment(request)
    status = 503 if site.status in _DOWN else 200
    if not site.access.admits(request):
        return Json({"status": site.status}, status)
    return Json(_facts(site), status)


@router.get("/health/ready", response_model=Readiness, responses={503: {"model": Readiness}, **errors(401)})
async def ready(request: Request) -> Json:
    """200 when requests are taken; 503 with the reason otherwise."""
    site = deployment(request)
    if site.status == "ok":
        return Json({"ready": True})
    return Json({"ready": False, "reason": _reason(site)}, 503)


@router.get("/ping", responses=errors(401, 503))
async def ping(request: Request) -> Json:
    """An empty object, for probes that only look at the status."""
    return Json({}, 503 if deployment(request).status in _DOWN else 200)


@router.get("/version", response_model=Version, responses=errors(401))
async def version(request: Request) -> dict[str, Any]:
    """Version of the server, and of the engine once it is loaded."""
    facts = deployment(request).engine.facts
    return {
        "version": lockstep.__version__,
        "engine": facts.engine_version if facts else None,
        "build": facts.build_digest if facts else None,
    }


def _reason(site: Deployment) -> str:
    match site.status:
        case "dead":
            return f"engine is down: {site.engine.cause}"
        case "loading":
            return f"loading: {site.engine.loading.stage}, {site.engine.loading.fraction:.0%}"
        case "stalled":
            return f"engine has not reported for {site.engine.last_step_age_s:.0f} s while requests run"
    return site.status


def _facts(site: Deployment) -> dict[str, Any]:
    """Names that dashboards of related servers read, and our own."""
    facts: dict[str, Any] = {
        "status": site.status,
        "ok": site.status == "ok",
        "backend": "lockstep",
        "version": lockstep.__version__,
        "model": site.options.name,
        "uptime_s": round(time.monotonic() - site.started_s, 3),
        "context_length": site.context,
        "draining": site.draining,
        "limits": _limits(site),
        "vision": {"enabled": site.media is not None, "sandbox": site.media.level if site.media else ""},
    }
    facts["recent_errors"] = list(reversed(site.errors))
    if site.status != "ok":
        facts["cause"] = _reason(site)
    return facts | _engine_facts(site)


def _limits(site: Deployment) -> dict[str, int]:
    queued = {"queued": site.options.max_queued, "queued_tokens": site.options.max_queued_tokens}
    return {"connections": MAX_CONNECTIONS, "body_bytes": site.body_bytes} | queued


def _engine_facts(site: Deployment) -> dict[str, Any]:
    engine = site.engine.facts
    if engine is None or site.engine.state is EngineState.DEAD:
        return {"busy": False, "requests_running": 0}
    snapshot = site.report or Snapshot(0, 0, engine.pool_tokens, 0, 0, 0, 0, 0)
    totals = site.meters.totals
    told = {name: getattr(snapshot, source) for name, source in _FIGURES.items()}
    return told | {
        "busy": snapshot.running > 0,
        "requests_total": int(totals["requests"]),
        "prefill_seconds_total": round(totals["prefill_s"], 3),
        "decode_seconds_total": round(totals["decode_s"], 3),
        "streams": {"running": snapshot.running, "paused": snapshot.paused, "waiting": snapshot.waiting, "max": engine.slots},
        "pool_tokens": engine.pool_tokens,
        "kept": {name: getattr(snapshot, f"kept_{name}") for name in _KEPT} | {"states": snapshot.kept_prompts},
        "last_step_age_s": round(site.engine.last_step_age_s, 3),
        "device": engine.device,
        "ranks": _ranks(engine, snapshot),
    }


def _ranks(engine: Ready, snapshot: Snapshot) -> dict[str, Any]:
    """How many ranks there are; of several, each one's settings digest, its newest step and the digest of all tokens it chose."""
    facts: dict[str, Any] = {"count": max(1, len(engine.rank_settings))}
    if engine.rank_settings:
        facts["settings"] = list(engine.rank_settings)
        facts |= {"steps": [ran.step for ran in snapshot.ranks], "chosen": [ran.chosen for ran in snapshot.ranks]}
    return facts
