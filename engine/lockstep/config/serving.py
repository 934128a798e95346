"""What `lockstep serve` is told: one frozen dataclass, its command line both ways. Standard library only."""

from __future__ import annotations

import argparse
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from lockstep.core.errors import LockstepError
from lockstep.core.grid import TILE, pages_of

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
LOOPS = ("plain", "overlapped")
DRAFTERS = ("none", "copy", "mtp")
AUTHS = ("auto", "key", "open")
DENSE_FORMS, KV_FORMS = ("bf16", "fp8", "q4"), ("bf16", "fp8")
# Options that have a `--no-` flag too.
_SWITCHES = ("thinking", "vision")


class OptionError(LockstepError):
    """A serving option that cannot be served."""


def _option(
    default: Any, note: str | None = None, low: float = 0, high: float = 0, *, words: Sequence[str] = (), value: str | None = None
) -> Any:
    """A field with all that is known of its flag: help, bounds (none if both are 0), the words it takes, how help shows its value."""
    return field(default=default, metadata={"note": note, "bounds": (low, high), "words": words, "value": value})


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """Options of one server; what each means stands beside it. Token counts are tokens, timeouts seconds.

    Every drafter but none copies first. `draft_policy` is a word of `draft.policy`. No option of drafts changes a reply.

    Kept states that must go are written to `spill_dir`, if there is one. Each pair of `dense` and `kv` is a reference of its own.
    """

    model: Path
    drafter: str = _option("none", f"who drafts: {', '.join(DRAFTERS)}, or the folder of a block drafter", value="D")
    host: str = _option("127.0.0.1", "address to listen on")
    port: int = _option(8022, "port to listen on", 1, 65535)
    name: str = _option("glm-5.3-flash", "model id the API answers to")
    context: int = _option(16384, "tokens one request may hold, prompt and reply", TILE, 1 << 20)
    parallel: int = _option(4, "requests decoded together", 1, 32)
    max_tokens: int = _option(32768, "reply tokens of a request that names no limit", 1, 1 << 20)
    thinking: bool = _option(False, "think unless a request says otherwise")
    reasoning_effort: str = _option("high", f"effort when thinking: {', '.join(EFFORTS)}")
    api_key_file: Path | None = _option(None, "file with one key a line, optionally as label: key", value="F")  # noqa: RUF009
    auth: str = _option("auto", "who needs a key: auto (all but loopback peers), key (everyone) or open (nobody)", words=AUTHS)
    trusted_proxy: tuple[str, ...] = _option((), "address or network whose X-Forwarded-For is believed; may be repeated", value="ADDR")
    cors_origin: tuple[str, ...] = _option((), "origin whose pages may ask (CORS), with a key; may be repeated", value="ORIGIN")
    state_hashes: bool = _option(False, "report the hash of each request's final state")
    device: str = _option("cpu", "cpu or cuda", words=("cpu", "cuda"))
    pool_tokens: int = _option(0, "tokens of the shared pool; 0: context * parallel", 0, 1 << 30)
    memory_reserve_gib: float = _option(0.0, "GiB of a device left for work; 0: 2 on cuda, 0.25 on cpu", 0, 4096)
    kv_pool_gib: float = _option(0.0, "GiB of a device for tokens beyond one window; 0: no bound", 0, 4096)
    prompt_slice: int = _option(0, "prompt tokens run between two rounds of running replies; 0: 2048 on cuda, 256 on cpu", 0, 1 << 16)
    max_queued: int = _option(64, "requests that may wait for a slot", 0, 1 << 20)
    max_queued_tokens: int = _option(1 << 20, "prompt tokens they may have together", 0, 1 << 40)
    ranks: int = _option(1, "processes that share the model, on GPUs one a device", 1, 2)
    loop: str = _option("overlapped", "plain, or overlapped: tell what a step brought while the next one runs", words=LOOPS)
    step_timeout: int = _option(120, "seconds after which a step that has not ended ends the engine", 1, 86400)
    drain_timeout: int = _option(10, "seconds that replies get to finish once the server is to end", 0, 86400)
    draft_policy: str = _option("auto", "how many tokens to draft a step, say 5, cost7 or fnc7:0.3; auto: cost7, for mtp cost3", value="W")
    copy_tokens: int = _option(15, "tokens a copy draft proposes at most; 0: no copies", 0, 31)
    draft_noise: float = _option(1.0, "weight of a sampled request's noise in its drafts", 0, 10)
    draft_edge: float = _option(1.0, "weight of the block drafter's selector", 0, 10)
    kept_gib: float = _option(4.0, "GiB of host memory for kept prompt states (prefix cache); 0: keep none", 0, 4096)
    kept_grid: int = _option(2048, "tokens of a prompt between two kept states", TILE, 1 << 20)
    kept_share: float = _option(0.5, "part of it above which a namespace loses states first", 0, 1)
    spill_dir: Path | None = _option(None, "folder for kept states that leave memory; a later server finds them there", value="DIR")  # noqa: RUF009
    spill_gib: float = _option(16.0, "GiB of that folder, on each rank", 0, 1 << 20)
    dense: str = _option("bf16", f"form of large dense matrices: {', '.join(DENSE_FORMS)}; bf16: the device's own type", words=DENSE_FORMS)
    kv: str = _option("bf16", f"form of the KV cache, latents and index keys: {', '.join(KV_FORMS)}", words=KV_FORMS)
    guard_loops: int = _option(256, "a reply ends once its last N tokens repeat a cycle of at most 16; 0: never", 0, 1 << 20)
    launch_table: Path | None = _option(None, "table of `python -m tuning` that kernels take their launches from", value="FILE")  # noqa: RUF009
    vision: bool = _option(True, "take pictures and clips if the checkpoint can")
    log_dir: Path | None = _option(None, "folder for a log of each rank but the first", value="DIR")  # noqa: RUF009

    def __post_init__(self) -> None:
        """Raise OptionError for a value out of range."""
        for option in fields(self)[1:]:
            value, (low, high), words = getattr(self, option.name), option.metadata["bounds"], option.metadata["words"]
            if high and not low <= value <= high:
                raise OptionError(f"{_flag(option.name)} {value}; needed: {low} to {high}")
            if words and value not in words:
                raise OptionError(f"{_flag(option.name)} {value}; needed: {' or '.join(words)}")
        if self.reasoning_effort not in EFFORTS:
            raise OptionError(f"--reasoning-effort {self.reasoning_effort}; needed: one of {', '.join(EFFORTS)}")
        if self.auth == "key" and self.api_key_file is None:
            raise OptionError("--auth key without --api-key-file; needed: a file with the keys that are good")
        for proxy in self.trusted_proxy:
            try:
                ipaddress.ip_network(proxy, strict=False)
            except ValueError:
                raise OptionError(f"--trusted-proxy {proxy}; needed: an address or network, say 10.0.0.2 or 10.0.0.0/24") from None
        for origin in self.cors_origin:
            if not re.fullmatch(r"\*|[a-z][a-z0-9+.-]*://[^/?#@\s]+", origin):
                raise OptionError(
                    f"--cors-origin {origin}; needed: scheme, host and port as browsers send them, say http://10.0.0.2:3000, or *"
                )
        if self.pool_tokens and self.pool_tokens < self.context:
            needed = f"needed: --context {self.context} or more, or a lower context"
            raise OptionError(f"--pool-tokens {self.pool_tokens} is less than one window; {needed}")

    @property
    def slice_tokens(self) -> int:
        """Prompt tokens of a step. A GPU reads all weights for a slice, however short, and needs many rows to be busy with them."""
        return self.prompt_slice or {"cpu": 256, "cuda": 2048}[self.device]

    @property
    def shared_tokens(self) -> int:
        """Tokens of the shared pool, whole pages; by default every slot can hold a full window."""
        return _whole_pages(self.pool_tokens) or _whole_pages(self.context) * self.parallel

    def to_argv(self) -> list[str]:
        """The flags that `from_argv` turns back into these options."""
        argv: list[str] = []
        for option in fields(self):
            value, flag = getattr(self, option.name), _flag(option.name)
            if isinstance(value, bool):
                if option.name in _SWITCHES:
                    argv.append(flag if value else f"--no-{option.name}")
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
        told: dict[str, Any] = {option.name: getattr(parsed, option.name) for option in fields(cls)}
        for name in ("trusted_proxy", "cors_origin"):
            told[name] = tuple(told[name] or ())
        return cls(**told)


def _whole_pages(tokens: int) -> int:
    return pages_of(tokens) * TILE


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def add_serving_flags(parser: argparse.ArgumentParser) -> None:
    """Add one flag per option, with the dataclass's defaults."""
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="checkpoint folder")
    for option in fields(ServingOptions)[1:]:
        default, how = option.default, dict[str, Any]()
        if isinstance(default, bool):
            how["action"] = argparse.BooleanOptionalAction if option.name in _SWITCHES else "store_true"
        elif isinstance(default, tuple):
            how |= {"action": "append", "metavar": option.metadata["value"]}
        else:
            how |= {"type": Path if default is None else type(default), "metavar": option.metadata["value"]}
        told = "" if default in (None, ()) or default is False else f" (default: {default})"
        parser.add_argument(_flag(option.name), default=None if default == () else default, help=f"{option.metadata['note']}{told}", **how)
