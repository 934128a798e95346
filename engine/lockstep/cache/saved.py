"""Memory of a sequence taken out of the device: tensors on the host by name. Knows no owner and no layout."""

from torch import Tensor

Saved = dict[str, Tensor]


def host_copy(values: Tensor) -> Tensor:
    """`values` on the host, contiguous, sharing no memory with them."""
    return values.detach().contiguous().clone() if values.device.type == "cpu" else values.detach().cpu().contiguous()


def under(prefix: str, saved: Saved) -> Saved:
    """The same tensors with `prefix.` before each name."""
    return {f"{prefix}.{name}": values for name, values in saved.items()}


def part(saved: Saved, prefix: str) -> Saved:
    """What `under(prefix, ..)` put in."""
    return {name.removeprefix(f"{prefix}."): values for name, values in saved.items() if name.startswith(f"{prefix}.")}


def size_bytes(saved: Saved) -> int:
    """Bytes of all tensors."""
    return sum(values.numel() * values.element_size() for values in saved.values())
