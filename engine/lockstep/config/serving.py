"""What `lockstep serve` is told: one frozen dataclass, its command line both ways. Standard library only."""

from __future__ import annotations

import argparse
import ipaddress
from dataclasses import dataclass, fields
from pathlib import Path

from lockstep.core.errors import LockstepError
from lockstep.core.grid import TILE, pages_of

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
LOOPS = ("plain", "overlapped")
DRAFTERS = ("none", "copy", "mtp")
AUTHS = ("auto", "key", "open")
DENSE_FORMS, KV_FORMS = ("bf16", "fp8", "q4"), ("bf16", "fp8")


class OptionError(LockstepError):
    """A serving option that cannot be served."""


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """Options of one server. Token counts are tokens, timeouts seconds; `pool_tokens` 0 means `parallel` windows of `context`.

    `drafter` is a word of DRAFTERS or the folder of a block drafter; every drafter but none copies first, up to `copy_tokens`.
    `draft_policy` is a word of `draft.policy`, auto for the drafter's own. `draft_noise` and `draft_edge` weigh a request's noise and the
    selector's edges in proposals. None of these changes a reply.

    Prompt states are kept in `kept_gib` of host memory, 0 for none, every `kept_grid` tokens of a prompt and at its marks. A namespace that
    owns more than `kept_share` of it loses states first. With `spill_dir` states that must go are written there, `spill_gib` at most.

    `auth` is a word of AUTHS: who needs a key of `api_key_file`. Peers in `trusted_proxy`, addresses or networks, may say whom they serve.

    `memory_reserve_gib` of each device stay free for work, 0 for what is usual there; `kv_pool_gib` bounds the memory of each device for
    tokens beyond one window, 0 for no bound.

    `vision` takes pictures and clips, if the checkpoint has a tower.

    `dense` is a word of DENSE_FORMS, `kv` of KV_FORMS; bf16 means the type the device computes in. Each pair is a reference of its own.
    """

    model: Path
    drafter: str = "none"
    host: str = "127.0.0.1"
    port: int = 8022
    name: str = "glm-5.3-flash"
    context: int = 16384
    parallel: int = 4
    max_tokens: int = 32768
    thinking: bool = False
    reasoning_effort: str = "high"
    api_key_file: Path | None = None
    auth: str = "auto"
    trusted_proxy: tuple[str, ...] = ()
    state_hashes: bool = False
    device: str = "cpu"
    pool_tokens: int = 0
    memory_reserve_gib: float = 0.0
    kv_pool_gib: float = 0.0
    prompt_slice: int = 256
    max_queued: int = 64
    max_queued_tokens: int = 1 << 20
    ranks: int = 1
    step_timeout: int = 120
    drain_timeout: int = 10
    draft_policy: str = "auto"
    copy_tokens: int = 15
    draft_noise: float = 1.0
    draft_edge: float = 1.0
    dense: str = "bf16"
    kv: str = "bf16"
    loop: str = "overlapped"
    kept_gib: float = 4.0
    kept_grid: int = 2048
    kept_share: float = 0.5
    spill_dir: Path | None = None
    spill_gib: float = 16.0
    vision: bool = True

    def __post_init__(self) -> None:
        """Raise OptionError for a value out of range."""
        for name, low, high in (
            ("port", 1, 65535),
            ("context", TILE, 1 << 20),
            ("parallel", 1, 32),
            ("max_tokens", 1, 1 << 20),
            ("pool_tokens", 0, 1 << 30),
            ("memory_reserve_gib", 0, 4096),
            ("kv_pool_gib", 0, 4096),
            ("prompt_slice", 1, 1 << 16),
            ("max_queued", 0, 1 << 20),
            ("max_queued_tokens", 0, 1 << 40),
            ("ranks", 1, 2),
            ("step_timeout", 1, 86400),
            ("drain_timeout", 0, 86400),
            ("copy_tokens", 0, 31),
            ("draft_noise", 0, 10),
            ("draft_edge", 0, 10),
            ("kept_gib", 0, 4096),
            ("kept_grid", TILE, 1 << 20),
            ("kept_share", 0, 1),
            ("spill_gib", 0, 1 << 20),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise OptionError(f"--{name.replace('_', '-')} {value}; needed: {low} to {high}")
        if self.reasoning_effort not in EFFORTS:
            raise OptionError(f"--reasoning-effort {self.reasoning_effort}; needed: one of {', '.join(EFFORTS)}")
        for name, words in (("device", ("cpu", "cuda")), ("dense", DENSE_FORMS), ("kv", KV_FORMS), ("loop", LOOPS), ("auth", AUTHS)):
            if getattr(self, name) not in words:
                raise OptionError(f"--{name} {getattr(self, name)}; needed: {' or '.join(words)}")
        if self.auth == "key" and self.api_key_file is None:
            raise OptionError("--auth key without --api-key-file; needed: a file with the keys that are good")
        for proxy in self.trusted_proxy:
            try:
                ipaddress.ip_network(proxy, strict=False)
            except ValueError:
                raise OptionError(f"--trusted-proxy {proxy}; needed: an address or network, say 10.0.0.2 or 10.0.0.0/24") from None
        if self.pool_tokens and self.pool_tokens < self.context:
            needed = f"needed: --context {self.context} or more, or a lower context"
            raise OptionError(f"--pool-tokens {self.pool_tokens} is less than one window; {needed}")

    @property
    def shared_tokens(self) -> int:
        """Tokens of the shared pool, whole pages; by default every slot can hold a full window."""
        return _whole_pages(self.pool_tokens) or _whole_pages(self.context) * self.parallel

    def to_argv(self) -> list[str]:
        """The flags that `from_argv` turns back into these options."""
        argv: list[str] = []
        for field in fields(self):
            value, flag = getattr(self, field.name), f"--{field.name.replace('_', '-')}"
            if isinstance(value, bool):
                if field.default is True or field.name == "thinking":
                    argv.append(flag if value else f"--no-{field.name}")
                elif value:
                    argv.append(flag)
            elif isinstance(value, tuple):
                argv += [word for one in value for word in (flag, one)]
            elif value is not None:
                argv += [flag, str(value)]
        return argv

    @classmethod
    def from_argv(cls, argv: list[str]) -> ServingOptions:
        """Parse flags; argparse ends the process with status 2 on unknown ones, OptionError names a bad value."""
        parser = argparse.ArgumentParser(prog="lockstep serve", allow_abbrev=False)
        add_serving_flags(parser)
        return cls.from_namespace(parser.parse_args(argv))

    @classmethod
    def from_namespace(cls, parsed: argparse.Namespace) -> ServingOptions:
        """Options of a namespace that `add_serving_flags` filled."""
        told = {field.name: getattr(parsed, field.name) for field in fields(cls)}
        return cls(**told | {"trusted_proxy": tuple(parsed.trusted_proxy or ())})


def _whole_pages(tokens: int) -> int:
    return pages_of(tokens) * TILE


def add_serving_flags(parser: argparse.ArgumentParser) -> None:
    """Add one flag per option, with the dataclass's defaults."""
    add = parser.add_argument
    defaults = {field.name: field.default for field in fields(ServingOptions)}
    add("--model", type=Path, required=True, metavar="DIR", help="checkpoint folder")
    add("--drafter", default=defaults["drafter"], metavar="D", help=f"who drafts: {', '.join(DRAFTERS)}, or the folder of a block drafter")
    add("--host", default=defaults["host"])
    add("--port", type=int, default=defaults["port"])
    add("--name", default=defaults["name"], help="model id the API answers to")
    add("--context", type=int, default=defaults["context"], help="tokens one request may hold, prompt and reply")
    add("--parallel", type=int, default=defaults["parallel"], help="requests decoded together")
    add("--max-tokens", type=int, default=defaults["max_tokens"], help="reply tokens of a request that names no limit")
    add("--thinking", action=argparse.BooleanOptionalAction, default=defaults["thinking"], help="think unless a request says otherwise")
    add("--reasoning-effort", default=defaults["reasoning_effort"], help=f"effort when thinking: {', '.join(EFFORTS)}")
    add("--api-key-file", type=Path, metavar="F", help="file with one key a line, optionally as label: key")
    add("--auth", default=defaults["auth"], help="who needs a key: auto (all but loopback peers), key (everyone) or open (nobody)")
    add("--trusted-proxy", action="append", metavar="ADDR", help="address or network whose X-Forwarded-For is believed; may be repeated")
    add("--state-hashes", action="store_true", help="report the hash of each request's final state")
    add("--device", default=defaults["device"], help="cpu or cuda")
    add("--pool-tokens", type=int, default=defaults["pool_tokens"], help="tokens of the shared pool; 0: context * parallel")
    add("--memory-reserve-gib", type=float, default=defaults["memory_reserve_gib"], help="GiB of a device left for work; 0: what is usual")
    add("--kv-pool-gib", type=float, default=defaults["kv_pool_gib"], help="GiB of a device for tokens beyond one window; 0: no bound")
    add("--prompt-slice", type=int, default=defaults["prompt_slice"], help="prompt tokens run between two rounds of running replies")
    add("--max-queued", type=int, default=defaults["max_queued"], help="requests that may wait for a slot")
    add("--max-queued-tokens", type=int, default=defaults["max_queued_tokens"], help="prompt tokens they may have together")
    add("--ranks", type=int, default=defaults["ranks"], help="processes that share the model, on GPUs one a device")
    add("--loop", default=defaults["loop"], help="plain, or overlapped: tell what a step brought while the next one runs")
    add("--step-timeout", type=int, default=defaults["step_timeout"], help="seconds after which a step that has not ended ends the engine")
    add("--drain-timeout", type=int, default=defaults["drain_timeout"], help="seconds that replies get to finish once the server is to end")
    add("--draft-policy", default=defaults["draft_policy"], metavar="W", help="how deep to draft, say fnc7:0.3; auto: the drafter's own")
    add("--copy-tokens", type=int, default=defaults["copy_tokens"], help="tokens a copy draft proposes at most; 0: no copies")
    add("--draft-noise", type=float, default=defaults["draft_noise"], help="weight of a sampled request's noise in its drafts")
    add("--draft-edge", type=float, default=defaults["draft_edge"], help="weight of the block drafter's selector")
    add("--kept-gib", type=float, default=defaults["kept_gib"], help="GiB of host memory for kept prompt states; 0: keep none")
    add("--kept-grid", type=int, default=defaults["kept_grid"], help="tokens of a prompt between two kept states")
    add("--kept-share", type=float, default=defaults["kept_share"], help="part of it above which a namespace loses states first")
    add("--spill-dir", type=Path, metavar="DIR", help="folder for kept states that leave memory; a later server finds them there")
    add("--spill-gib", type=float, default=defaults["spill_gib"], help="GiB of that folder, on each rank")
    add("--dense", default=defaults["dense"], help=f"form of large dense matrices: {', '.join(DENSE_FORMS)}; bf16: the device's own type")
    add("--kv", default=defaults["kv"], help=f"form of kept latents and index keys: {', '.join(KV_FORMS)}")
    add("--vision", action=argparse.BooleanOptionalAction, default=defaults["vision"], help="take pictures and clips if the checkpoint can")
