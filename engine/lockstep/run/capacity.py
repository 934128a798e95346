"""How many tokens the memory at hand holds, and the refusal of a window it does not. Measured once, when the weights are loaded."""

from dataclasses import dataclass
from pathlib import Path

import torch

from lockstep.cache import PAGE_TOKENS, StateSlots, TokenPool
from lockstep.config.model import Attention, TextConfig
from lockstep.config.serving import ServingOptions
from lockstep.config.share import Share
from lockstep.core.errors import WINDOW_TOO_LARGE, LockstepError
from lockstep.core.grid import pages_of

# Left for activations, drafting and libraries, by kind of device.
RESERVE_BYTES = {"cpu": 256 << 20, "cuda": 2 << 30}
GIB = 1 << 30


class WindowError(LockstepError):
    """The window, or the pool asked for, does not fit the memory of this machine."""

    code = WINDOW_TOO_LARGE


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes on one rank: of a page in all pools, and of what there is once whatever the window."""

    page_bytes: int
    fixed_bytes: int


def needs(options: ServingOptions, text: TextConfig, dtype: torch.dtype, share: Share) -> Needs:
    """What memory `options` asks for beside the loaded weights. Drafters are loaded later and count as large as their files."""
    page = TokenPool(text, 1, "meta", dtype, options.kv).page_bytes
    slots = StateSlots(text, options.parallel, "meta", dtype, share)
    reserve = round(options.memory_reserve_gib * GIB) or RESERVE_BYTES[options.device]
    fixed = reserve + sum(part.numel() * part.element_size() for part in (slots.kda, slots.conv_tail, slots.index_tail))
    if options.drafter == "mtp":
        # A layer like the trunk's sparse ones, which also attends.
        page += page // text.attention_kinds.count(Attention.DSA)
        fixed += _weight_bytes(options.model) // text.num_hidden_layers
    elif options.drafter not in ("none", "copy"):
        fixed += _weight_bytes(Path(options.drafter))
    return Needs(page, fixed)


def pool_pages(options: ServingOptions, needed: Needs, free_bytes: int) -> int:
    """Pages of the shared pool: those asked for, or as many as `parallel` windows could fill, `kv_pool_gib` allows and the memory holds.

    Raises WindowError with the largest window that fits.
    """
    fitting = max(0, free_bytes - needed.fixed_bytes) // needed.page_bytes
    wanted, window = options.shared_tokens // PAGE_TOKENS, pages_of(options.context)
    least = wanted if options.pool_tokens else window
    if least > fitting:
        what = f"--pool-tokens {options.pool_tokens}" if options.pool_tokens else f"--context {options.context}"
        asked, free = ((least * needed.page_bytes + needed.fixed_bytes) / GIB, free_bytes / GIB)
        largest = fitting * PAGE_TOKENS
        cure = f"the largest that fits is {largest}" if largest else "not even 64 tokens fit: lower --parallel or free memory"
        raise WindowError(f"{what} needs {asked:.2f} GiB beside the weights, {free:.2f} GiB are free; {cure}")
    if options.kv_pool_gib and not options.pool_tokens:
        wanted = min(wanted, window + int(options.kv_pool_gib * GIB) // needed.page_bytes)
    return min(wanted, fitting)


def free_bytes(device: str, ranks: int) -> int:
    """Bytes this rank may use of `device`: free memory of its GPU, or its part of what this machine can give."""
    if device.startswith("cuda"):
        return torch.cuda.mem_get_info(device)[0]
    return available_bytes(Path("/")) // ranks


def available_bytes(root: Path) -> int:
    """Memory a new program could use: of the machine below `root`, or of the control group if that is less."""
    known = [line.split() for line in (root / "proc/meminfo").read_text().splitlines()]
    available = next(int(words[1]) * 1024 for words in known if words[0] == "MemAvailable:")
    group = root / "sys/fs/cgroup"
    for limit, used in (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):
        if (group / limit).exists() and (most := (group / limit).read_text().strip()) != "max":
            available = min(available, max(0, int(most) - int((group / used).read_text())))
    return available


def _weight_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))
