"""Library products in fixed row tiles, and the comparisons that decide which tile a shape may use."""

from functools import cache

import torch
from torch import Tensor

_MAX_BATCH = 64
_CUDA_BATCH = 8
# exact: partial sums of a bf16 product stay in fp32.
torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def linear(x: Tensor, weight: Tensor, tile: int) -> Tensor:
    """`[R, in] x [in, out]`, `tile` rows a call."""
    if x.shape[0] == tile:
        return torch.mm(x, weight)
    out = x.new_empty(x.shape[0], weight.shape[1])
    for row in range(0, x.shape[0], tile):
        torch.mm(x[row : row + tile], weight, out=out[row : row + tile])
    return out


def head_linear(x: Tensor, weight: Tensor, tile: int) -> Tensor:
    """`[R, heads, in] x [heads, in, out] -> [R, heads, out]`, `tile` rows a call."""
    if x.shape[0] == tile:
        return torch.bmm(x.transpose(0, 1), weight).transpose(0, 1)
    return torch.cat([torch.bmm(part.transpose(0, 1), weight).transpose(0, 1) for part in x.split(tile)])


def safe_tiles(weight: Tensor, step_rows: int, prompt_rows: int) -> dict[int, int]:
    """Row count -> rows of one library call that keeps every row's bits: 1..4 step tiles, one prompt tile, what else the library allows."""
    return dict(_safe_tiles(tuple(weight.shape), weight.dtype, weight.device, step_rows, prompt_rows))


@cache
def _safe_tiles(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, step_rows: int, prompt_rows: int
) -> tuple[tuple[int, int], ...]:
    generator = torch.Generator().manual_seed(len(shape))
    draw = lambda *size: torch.randn(*size, generator=generator).to(device=device, dtype=dtype)  # noqa: E731
    weight = draw(*shape)
    multiply = linear if len(shape) == 2 else head_linear
    heads = shape[:-2]
    # exact: one answer per row, from a step tile with nothing else in it; every other arrangement must reproduce it.
    tile = step_rows if rows_are_independent(multiply, draw(step_rows, *heads, shape[-2]), weight) else 1
    found = [(prompt_rows, prompt_rows if rows_are_independent(multiply, draw(prompt_rows, *heads, shape[-2]), weight) else 1)]
    most = 4 * step_rows
    if device.type == "cuda":
        # exact: another order of sums shows in a rounded result too seldom for a comparison to find it.
        return (*found, *((count, tile) for count in range(step_rows, most + 1, step_rows)))
    x = draw(most, *heads, shape[-2])
    wanted = multiply(x, weight, tile)
    for count in range(1, most + 1):
        direct = tile > 1 and all(
            torch.equal(multiply(x[at : at + count], weight, count), wanted[at : at + count])
            for at in {0, (most - count) // 2, most - count}
        )
        if direct or count % step_rows == 0:
            found.append((count, count if direct else tile))
    return tuple(found)


def rows_are_independent(multiply, x: Tensor, weight: Tensor) -> bool:  # noqa: ANN001
    """True if each row of `x` gives the same bits alone among zero rows, at the first and at the last place."""
    whole = multiply(x, weight, x.shape[0])
    for row in range(x.shape[0]):
        for place in (0, x.shape[0] - 1, row):
            alone = torch.zeros_like(x)
            alone[place] = x[row]
            if not torch.equal(multiply(alone, weight, x.shape[0])[place], whole[row]):
                return False
    return True


def batched(a: Tensor, b: Tensor) -> Tensor:
    """One library call where the batch size is known not to matter, else one call a product; on a GPU 8 products a call, always."""
    if a.is_cuda:
        return _in_eights(a, b)
    layouts = (a.stride(-1) == 1, b.stride(-1) == 1)
    if a.shape[0] <= _MAX_BATCH and _batch_is_free(a.shape[1:], b.shape[1:], layouts, a.dtype, a.device):
        return torch.bmm(a, b)
    return torch.cat([torch.bmm(a[i : i + 1], b[i : i + 1]) for i in range(a.shape[0])])


def _in_eights(a: Tensor, b: Tensor) -> Tensor:
    """Products in batches of one size, the last one filled up with whatever comes first."""
    missing = -a.shape[0] % _CUDA_BATCH
    if missing:
        a, b = (torch.cat([part, part[:1].expand(missing, *part.shape[1:])]) for part in (a, b))
    parts = [torch.bmm(x, y) for x, y in zip(a.split(_CUDA_BATCH), b.split(_CUDA_BATCH), strict=True)]
    out = parts[0] if len(parts) == 1 else torch.cat(parts)
    return out[: out.shape[0] - missing]


@cache
def _batch_is_free(left: torch.Size, right: torch.Size, row_major: tuple[bool, bool], dtype: torch.dtype, device: torch.device) -> bool:
    """True if products of this shape have the same bits in every batch of 1..64 that was tried."""
    generator = torch.Generator().manual_seed(0)

    def draw(shape: torch.Size, plain: bool) -> Tensor:
        values = torch.randn(_MAX_BATCH, *(shape if plain else shape[::-1]), generator=generator).to(device=device, dtype=dtype)
        return values if plain else values.transpose(1, 2)

    a, b = draw(left, row_major[0]), draw(right, row_major[1])
    single = torch.cat([torch.bmm(a[i : i + 1], b[i : i + 1]) for i in range(_MAX_BATCH)])
    spans = [(0, n) for n in (*range(2, 9), 16, 24, 31, 32, 63, 64)] + [(5, 8), (1, 3), (30, 64)]
    return all(torch.equal(torch.bmm(a[i:j], b[i:j]), single[i:j]) for i, j in spans)
