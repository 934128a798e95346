"""Attention of many heads over one shared latent per token, on a gathered list of keys. Knows no page table and no selection."""

from torch import Tensor

from lockstep.kernels import host as host_rows
from lockstep.kernels.latent_attention import host, ref

KEY_ALIGNMENT = 32


def key_slots(keys: int) -> int:
    """Length of a row's key list: K rounded up so that vector code meets no remainder."""
    return -(-keys // KEY_ALIGNMENT) * KEY_ALIGNMENT


def attend(query: Tensor, latents: Tensor, keys: Tensor, bias: Tensor, scale: float) -> Tensor:
    """`softmax(scale q . c + bias) c` per row and head, `[R, H, r]` in query's type.

    `query [R, H, r]` (absorbed), `latents [tokens, r]` in query's type or as an e4m3 row store (`kernels.fp8`), `keys [R, K']` int64 places
    in ascending key order, `bias [R, 1, K']` fp32: 0 for a key, -inf for an unused slot (its place must hold finite values). K' is the same
    for every row of the model, so neither context length nor neighbours change a bit. Softmax in fp32.
    """
    if keys.shape[1] % KEY_ALIGNMENT or bias.shape != (keys.shape[0], 1, keys.shape[1]):
        raise ValueError(
            f"keys {tuple(keys.shape)}, bias {tuple(bias.shape)}; needed: [R, multiple of {KEY_ALIGNMENT}] and [R, 1, the same]"
        )
    return (host if host_rows.runs(query) else ref).attend(query, latents, keys, bias, scale)
