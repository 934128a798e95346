"""Metrics: one table of families, published under our own prefix and, where a name exists, under vLLM's. Knows no endpoint.

Gauges and counters are read from the engine's last snapshot when scraped; histograms are fed by finished requests. A family that
is not measured is left out."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from lockstep.core.messages import Ready, Snapshot

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
TOKENS = (1, 8, 32, 128, 512, 2048, 8192, 32768, 131072, 524288)


class Engine(Protocol):
    """What is known of the engine beside its reports."""

    @property
    def facts(self) -> Ready | None: ...
    @property
    def last_step_age_s(self) -> float: ...


class Reporting(Protocol):
    """What the table reads: the engine, and its last report as the server tells it."""

    @property
    def engine(self) -> Engine: ...
    @property
    def report(self) -> Snapshot | None: ...
    @property
    def looking(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Reading:
    """One figure of the engine's snapshot, or of what is known of the engine; one whose name ends in `_total` is a counter."""

    name: str
    help: str
    source: str
    vllm: str = ""


@dataclass(frozen=True, slots=True)
class Timing:
    """One histogram over finished requests or rounds."""

    name: str
    help: str
    bounds: tuple[float, ...]
    vllm: str


READINGS = (
    Reading("requests_running", "Requests that have entered and not ended.", "running", "num_requests_running"),
    Reading("requests_waiting", "Requests in the queue.", "waiting", "num_requests_waiting"),
    Reading("requests_paused", "Requests taken out of the pool until it has room again.", "paused"),
    Reading("waiting_tokens", "Prompt tokens in the queue.", "waiting_tokens"),
    Reading("preemptions", "Times a request was paused.", "pauses_total", "num_preemptions"),
    Reading("requests_running_max", "Slots.", "slots"),
    Reading("pool_tokens", "Tokens the shared pool holds.", "pool_tokens"),
    Reading("pool_free_tokens", "Tokens of the shared pool nobody owns.", "pool_free_tokens"),
    Reading("pool_usage_ratio", "Share of the pool that is owned, 0 to 1.", "pool_usage", "kv_cache_usage_perc"),
    Reading("steps", "Steps of the engine.", "steps_total"),
    Reading("prompt_tokens", "Prompt tokens computed.", "prompt_tokens_total", "prompt_tokens"),
    Reading("generation_tokens", "Tokens generated, live replies included.", "generated_tokens_total", "generation_tokens"),
    Reading("drafted_tokens", "Tokens drafted.", "drafted_tokens_total", "spec_decode_num_draft_tokens"),
    Reading("accepted_tokens", "Drafted tokens accepted.", "accepted_tokens_total", "spec_decode_num_accepted_tokens"),
    Reading("kept_states", "Prompt states kept, in memory and on disk.", "kept_prompts"),
    Reading("kept_bytes", "Bytes of kept states in memory, their pages not counted.", "kept_bytes"),
    Reading("kept_disk_bytes", "Bytes of kept states on disk.", "kept_disk_bytes"),
    Reading("kept_asked_tokens", "Prompt tokens looked up.", "kept_asked_tokens_total", "prefix_cache_queries"),
    Reading("prompt_tokens_cached", "Prompt tokens begun behind.", "kept_hit_tokens_total", "prefix_cache_hits"),
    Reading("kept_evicted", "Kept states that had to go.", "kept_evicted_total"),
    Reading("kept_spilled", "Of these, written to disk.", "kept_spilled_total"),
    Reading("kept_returned", "Kept states that came back from disk.", "kept_returned_total"),
    Reading("kept_lost", "Kept states not readable when asked for.", "kept_lost_total"),
    Reading("kept_waits", "Requests that waited for another one's equal prefix.", "kept_waits_total"),
)

TIMINGS = {
    "first_token_s": Timing(
        "time_to_first_token_seconds", "From a request's arrival to its first token.", SECONDS, "time_to_first_token_seconds"
    ),
    "between_s": Timing("inter_token_seconds", "From round to round, per token.", SECONDS, "inter_token_latency_seconds"),
    "total_s": Timing("request_latency_seconds", "From a request's arrival to its end.", SECONDS, "e2e_request_latency_seconds"),
    "queued_s": Timing("request_queue_seconds", "In the engine's queue.", SECONDS, "request_queue_time_seconds"),
    "prefill_s": Timing("request_prefill_seconds", "In the prompt.", SECONDS, "request_prefill_time_seconds"),
    "decode_s": Timing("request_decode_seconds", "In the reply.", SECONDS, "request_decode_time_seconds"),
    "inference_s": Timing("request_inference_seconds", "In prompt and reply.", SECONDS, "request_inference_time_seconds"),
    "prompt_tokens": Timing("request_prompt_tokens", "Prompt tokens of a request.", TOKENS, "request_prompt_tokens"),
    "reply_tokens": Timing("request_generation_tokens", "Reply tokens of a request.", TOKENS, "request_generation_tokens"),
    "most_tokens": Timing("request_most_tokens", "Reply tokens a request may have.", TOKENS, "request_max_num_generation_tokens"),
}


COUNTED = {
    "requests": ("lockstep_requests", "Inference requests that ended, by HTTP status or as cancelled.", ("route", "status", "key")),
    "left": ("lockstep_client_disconnections", "Clients that left before their reply ended.", ()),
    "loops": ("lockstep_loops", "Replies ended because they repeated themselves.", ()),
    "finished": ("vllm:request_success", "Replies by finish reason.", ("model_name", "finished_reason")),
}


class Meters:
    """Registry of one server. `totals`, by the keys of COUNTED and TIMINGS, are what was counted and observed together."""

    def __init__(self, model: str) -> None:
        disable_created_metrics()
        self.registry, self.model, self.totals = CollectorRegistry(), model, dict.fromkeys((*COUNTED, *TIMINGS), 0.0)
        self._counted = {key: Counter(name, note, labels, registry=self.registry) for key, (name, note, labels) in COUNTED.items()}
        self._timings = {key: self._histograms(timing) for key, timing in TIMINGS.items()}

    def follow(self, site: Reporting) -> None:
        """Publish the readings of `site`."""
        self.registry.register(_EngineReadings(self.model, site))

    def _histograms(self, timing: Timing) -> tuple[Histogram, Histogram]:
        alias = Histogram(f"vllm:{timing.vllm}", timing.help, ["model_name"], buckets=timing.bounds, registry=self.registry)
        own = Histogram(f"lockstep_{timing.name}", timing.help, buckets=timing.bounds, registry=self.registry)
        return own, alias.labels(self.model)

    def observe(self, key: str, value: float) -> None:
        """Feed one histogram; `key` is a key of TIMINGS."""
        self.totals[key] += value
        for histogram in self._timings[key]:
            histogram.observe(value)

    def count(self, key: str, *labels: str) -> None:
        """One more; `key` is a key of COUNTED."""
        self.totals[key] += 1
        (self._counted[key].labels(*labels) if labels else self._counted[key]).inc()


class _EngineReadings(Collector):
    """Reads the table at scrape time; nothing at all before the engine has reported."""

    def __init__(self, model: str, site: Reporting) -> None:
        self._model, self._site = model, site

    def collect(self) -> Iterator[Metric]:
        snapshot, facts = self._site.report, self._site.engine.facts
        if snapshot is None or facts is None:
            return
        age_s = self._site.engine.last_step_age_s
        yield GaugeMetricFamily("lockstep_last_step_age_seconds", "Since the engine was heard while it has work, 0 without.", value=age_s)
        yield GaugeMetricFamily("lockstep_media_decoding", "Requests whose pictures are being decoded.", value=self._site.looking)
        # A histogram there; its sum and count are what is known here, and what dashboards read.
        steps = SummaryMetricFamily("vllm:iteration_tokens_total", "Tokens of each step, of prompts and replies.", labels=["model_name"])
        steps.add_metric([self._model], snapshot.steps_total, snapshot.prompt_tokens_total + snapshot.generated_tokens_total)
        yield steps
        told = asdict(facts) | asdict(snapshot)
        told["pool_usage"] = 1 - snapshot.pool_free_tokens / facts.pool_tokens if facts.pool_tokens else 0.0
        for row in READINGS:
            family = CounterMetricFamily if row.source.endswith("_total") else GaugeMetricFamily
            value = told[row.source]
            yield family(f"lockstep_{row.name}", row.help, value=value)
            if row.vllm:
                alias = family(f"vllm:{row.vllm}", row.help, labels=["model_name"])
                alias.add_metric([self._model], value)
                yield alias
