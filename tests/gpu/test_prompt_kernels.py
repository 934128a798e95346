"""Kernels of prompt slices on a CUDA device: values of the plain forms, and rows that do not see each other however a prompt is cut."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lockstep.kernels.indexer import many as indexing
from lockstep.kernels.indexer import paged
from lockstep.kernels.kda import Mixer, chunk
from lockstep.kernels.kda import ref as plain_kda
from lockstep.kernels.latent_attention import many as attention
from lockstep.kernels.linear import many, pack, rows

pytestmark = pytest.mark.gpu


class Draw:
    """Normal values on the device."""

    def __init__(self, seed: int = 1) -> None:
        self.generator = torch.Generator("cuda").manual_seed(seed)

    def __call__(self, *size: int) -> Tensor:
        return torch.randn(*size, generator=self.generator, device="cuda")


def far(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


@pytest.mark.parametrize(("heads", "width", "count"), [(4, 32, 239), (32, 128, 303)])
@torch.inference_mode()
def test_the_delta_rule_in_chunks(heads: int, width: int, count: int):
    draw, channels, padded = Draw(), 3 * heads * width, -(-count // 64) * 64
    projected, tail = draw(padded, channels + 2 * width + heads).bfloat16(), draw(3, channels).bfloat16()
    low, start = (draw(2, width, heads * width) * width**-0.5).bfloat16(), draw(heads, width, width) * 0.5
    rate, offset, taps = torch.exp(draw(heads, 1) * 0.5), draw(heads, width), draw(4, channels) * 0.5
    mixer = Mixer(taps=taps, decay_and_gate=pack(low.transpose(1, 2)), rate=rate, offset=offset, bound=-5.0, low=low)
    state = start.clone()
    out, _ = chunk.tiles(projected, count, tail, state, mixer)
    source = torch.cat([tail, projected[:, :channels]]).float()
    mixed = torch.nn.functional.silu(torch.stack([source[tap : tap + padded] * taps[tap] for tap in range(4)]).sum(0)).bfloat16()
    decay = (projected[:, channels : channels + width].float() @ low[0].float()).bfloat16()
    q, k, v, log_decay = plain_kda.inputs(mixed, decay, rate, offset, -5.0)
    beta = plain_kda.beta(projected[:, channels + 2 * width :])
    log_decay[count:], beta[count:] = 0, 0
    plain, wanted = start.clone(), []
    for at in range(0, padded, 64):
        made, plain = plain_kda.prompt_tile(plain, tuple(part[at : at + 64] for part in (q, k, v, log_decay, beta)))  # type: ignore[arg-type]
        wanted.append(made)
    assert far(out[:count], torch.cat(wanted)[:count]) < 1e-3
    assert far(state, plain) < 1e-3
    again, before, parts = start.clone(), tail, []
    for at in range(0, padded, 64):
        part = projected[at : at + 64].contiguous()
        parts.append(chunk.tiles(part, min(64, count - at), before, again, mixer)[0])
        before = part[-3:, :channels].contiguous()
    assert torch.equal(torch.cat(parts)[:count], out[:count])
    assert torch.equal(again, state)


@pytest.mark.parametrize(("heads", "latent", "pools"), [(32, 512, 512), (4, 64, 64)])
@torch.inference_mode()
def test_attention_over_chosen_pools(heads: int, latent: int, pools: int):
    draw, tokens = Draw(), 8192
    order = torch.randperm(tokens // 64, generator=draw.generator, device="cuda")
    pages, store = order.int()[None].contiguous(), draw(tokens, latent).bfloat16()
    for first, padded, count in ((0, 64, 50), (4 * pools - 32, 128, 128), (4096, 64, 61)):
        query, chosen = draw(padded, heads, latent).bfloat16(), torch.zeros(padded, pools, dtype=torch.int32, device="cuda")
        wanted = torch.zeros(padded, heads, latent, dtype=torch.float64, device="cuda")
        for row in range(count):
            whole = (first + row + 1) // 4
            own = torch.arange(whole, device="cuda")
            if whole > pools:
                own = torch.randperm(whole, generator=draw.generator, device="cuda")[:pools].sort().values
                chosen[row] = own.int()
            token = torch.cat(
                [(own[:, None] * 4 + torch.arange(4, device="cuda")).flatten(), torch.arange(4 * whole, first + row + 1, device="cuda")]
            )
            context = store[order[token // 64] * 64 + token % 64].double()
            wanted[row] = torch.softmax(query[row].double() @ context.T * 0.06, -1) @ context
        found = attention.attend(query, store, chosen, pages, first, count, 0.06, pools)
        assert far(found, wanted) < 4e-3
        assert not found[count:].any()
        for row in range(0, count, 7):
            part = slice(row, row + 1)
            alone = attention.attend(query[part].contiguous(), store, chosen[part].contiguous(), pages, first + row, 1, 0.06, pools)
            assert torch.equal(alone, found[part])


@torch.inference_mode()
def test_pools_are_those_with_the_largest_scores():
    draw, heads, width, pools, pitch, queries = Draw(), 32, 128, 512, 2336, 12288
    order = torch.randperm(128, generator=draw.generator, device="cuda")
    pages, pooled = order.int()[None].contiguous(), draw(2048, width).bfloat16()
    keys = pooled[(order[:, None] * 16 + torch.arange(16, device="cuda")).flatten()].float()
    macros = paged.macros(heads, width, pools, queries, queries - heads * width, pitch, pitch - width - heads, False)
    for first, count in ((1984, 192), (7936, 256)):
        query, projected = draw(count, queries).bfloat16(), draw(count, pitch).bfloat16()
        found = indexing.choose(query, projected, pooled, pages, first, count, 0.01, macros)
        assert found is not None
        for row in range(0, count, 5):
            whole = (first + row + 1) // 4
            if whole > pools:
                near = torch.relu(query[row, queries - heads * width :].view(heads, width).float() @ keys[:whole].T)
                best = (
                    (near * projected[row, pitch - width - heads : pitch - width].float()[:, None]).sum(0).topk(pools).indices.sort().values
                )
                assert int(torch.isin(found[row].long(), best).sum()) >= pools - 1
        part = indexing.choose(query[64:].contiguous(), projected[64:].contiguous(), pooled, pages, first + 64, count - 64, 0.01, macros)
        scored = (first + 64 + torch.arange(count - 64, device="cuda") + 1) // 4 > pools
        assert part is not None
        assert torch.equal(part[scored], found[64:][scored])


@pytest.mark.parametrize(("inputs", "outputs"), [(4096, 2336), (1024, 4096), (256, 1024)])
@torch.inference_mode()
def test_products_of_many_rows(inputs: int, outputs: int):
    draw = Draw()
    weight, x = (draw(outputs, inputs) * inputs**-0.5).bfloat16(), draw(1024, inputs).bfloat16()
    matrix = rows.pack_bf16(weight)
    assert torch.equal(many.expand(matrix), weight)
    whole = rows.linear(x, matrix)
    assert far(whole, x.double() @ weight.double().T) < 4e-3
    for first, count in ((0, 64), (64, 64), (128, 320), (512, 512)):
        assert torch.equal(rows.linear(x[first : first + count], matrix), whole[first : first + count])
