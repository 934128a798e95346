"""Every operation's plain forms against float64: fp32 through NumPy, fp32 through torch, and bf16, where a GPU rounds too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from torch import Tensor

from fixtures import float64
from fixtures.float64 import ROUNDING, far
from lockstep.kernels import causal_conv, experts, fp8, host, hyper_connection, indexer, kda, latent_attention, rms_norm, router, swiglu
from lockstep.kernels.exl3 import Exl3Matrix, decode_outer
from lockstep.kernels.linear import linear, pack

torch.set_num_threads(1)
EPS = 1e-5
FORMS = {"numpy": torch.float32, "torch": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Form:
    """One way in which operations run here."""

    kind: torch.dtype

    @property
    def points(self) -> torch.dtype | None:
        return None if self.kind is torch.float32 else self.kind

    def draw(self, *size: int, seed: int = 0) -> Tensor:
        return torch.randn(*size, generator=torch.Generator().manual_seed(sum(size) + 1000 * seed)).to(self.kind)

    def holds(self, found: Tensor, wanted: Tensor, roundings: float = 1) -> None:
        """`found` is within so many roundings; a sum in fp32 costs as many as 32."""
        limit = 32 * ROUNDING[torch.float32] + (roundings * ROUNDING[self.kind] if self.points else 0)
        assert found.shape == wanted.shape
        assert far(found, wanted) <= limit


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Form:
    if request.param == "torch":
        monkeypatch.setattr(host, "runs", lambda x: False)
    return Form(FORMS[request.param])


def full(*size: int, seed: int = 9) -> Tensor:
    """fp32 in every form."""
    return Form(torch.float32).draw(*size, seed=seed)


def test_norms(form: Form) -> None:
    x, weight, bias = form.draw(8, 256), 1 + form.draw(256, seed=1), form.draw(256, seed=2)
    x[3] = 0
    form.holds(rms_norm.rms_norm(x, weight, EPS), float64.rms_norm(x, weight, EPS, form.points))
    form.holds(rms_norm.layer_norm(x, weight, bias, 1e-6), float64.layer_norm(x, weight, bias, 1e-6))
    wide, gate = full(8, 4, 32), form.draw(8, 4, 32, seed=3)
    form.holds(rms_norm.gated_rms_norm(wide, full(32), gate, EPS), float64.gated_rms_norm(wide, full(32), gate, EPS))


def test_activations(form: Form) -> None:
    both = form.draw(8, 128) * 8
    gate, up = both.chunk(2, -1)
    wanted = float64.swiglu(gate, up, 10.0, form.points)
    form.holds(swiglu.swiglu(gate, up, 10.0), wanted)
    form.holds(swiglu.swiglu_pair(both, 10.0), wanted)
    x, first, last = form.draw(8, 64), form.draw(96, 64, seed=1) * 0.3, form.draw(40, 48, seed=2)
    gate, up = float64.at(form.points, float64.linear(x, first)).chunk(2, -1)
    inner = float64.at(form.points, float64.swiglu(gate, up, 1.5, form.points))
    form.holds(swiglu.swiglu_between(x, pack(first), pack(last), 1.5), float64.linear(inner, last), 2)


@pytest.mark.parametrize("rows", [1, 9, 32, 64])
@pytest.mark.parametrize("shape", [(100, 48), (3, 40, 32)])
def test_products(form: Form, rows: int, shape: tuple[int, ...]) -> None:
    weight, x = form.draw(*shape), form.draw(rows, *shape[:-2], shape[-1], seed=1)
    form.holds(linear(x, pack(weight)), float64.linear(x, weight))


def delta(form: Form, heads: int, width: int) -> tuple[float64.Delta, kda.Mixer]:
    low, taps = form.draw(2, heads * width, width) * width**-0.5, full(4, 3 * heads * width) * 0.5
    rate, offset = torch.exp(full(heads) * 0.2), full(heads, width, seed=8)
    # Every other channel forgets so slowly that a tile's first rows still count behind the next one.
    offset[:, ::2] -= 7
    mixer = kda.Mixer(taps=taps, decay_and_gate=pack(low), rate=rate.view(-1, 1), offset=offset, bound=-5.0, low=low)
    return float64.Delta(low, taps, rate, offset, -5.0), mixer


def source_index(rows: int) -> Tensor:
    return torch.arange(rows).unsqueeze(1) + torch.arange(4)


def test_the_delta_rule_in_steps(form: Form) -> None:
    heads, width, count, norm = 4, 32, 13, 1 + full(32)
    layer, mixer = delta(form, heads, width)
    projected, before = form.draw(16, 3 * heads * width + 2 * width + heads), form.draw(3, 3 * heads * width, seed=4)
    inputs, gate = kda.prepare(projected, lambda mixed: torch.cat([before, mixed]), source_index(16), mixer)
    state, out = full(2, heads, width, width), torch.zeros(count, heads, width)
    own, wanted_gate = float64.delta_inputs(projected[:count], before, layer, form.points)
    wanted, after = float64.delta_rule(state[0], own)
    for part, exact in zip(inputs, own, strict=True):
        assert far(part[:count].reshape(exact.shape), exact) <= 64 * ROUNDING[torch.float32]
    form.holds(gate[:count], wanted_gate)
    kda.step_window(state, torch.tensor([0]), torch.tensor([1]), inputs, [1] * count, out)
    form.holds(state[1], after)
    form.holds(rms_norm.gated_rms_norm(out, norm, gate[:count], EPS), float64.gated_rms_norm(wanted, norm, wanted_gate, EPS))


@pytest.mark.parametrize("count", [130, 192])
def test_the_delta_rule_in_chunks(form: Form, count: int) -> None:
    heads, width = 4, 32
    layer, mixer = delta(form, heads, width)
    projected, before = form.draw(192, 3 * heads * width + 2 * width + heads), form.draw(3, 3 * heads * width, seed=4)
    state, out, tail = full(heads, width, width), [], before
    wanted, after = float64.delta_rule(state, float64.delta_inputs(projected[:count], before, layer, form.points)[0])
    for at in range(0, 192, 64):
        tile = projected[at : at + 64]
        inputs, _ = kda.prepare(tile, partial(lambda held, mixed: torch.cat([held, mixed]), tail), source_index(64), mixer)
        for part in inputs[3:]:
            part[max(0, count - at) :] = 0
        made, state = kda.prompt_tile(state, inputs)
        out.append(made)
        tail = tile[-3:, : before.shape[1]]
    # Running sums of log decays reach -320: differences of them are right to that many times a rounding.
    assert far(torch.cat(out)[:count], wanted) <= 320 * ROUNDING[torch.float32]
    assert far(state, after) <= 320 * ROUNDING[torch.float32]


def test_a_convolution_points_at_rows_that_lie_anywhere(form: Form) -> None:
    source, taps = form.draw(20, 96), full(4, 96)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(1))
    found = causal_conv.causal_conv(source, order[source_index(17)], taps)
    form.holds(found, float64.convolved(source[order][3:], source[order][:3], taps))


def test_hyper_connections(form: Form) -> None:
    width, norm = 64, form.draw(64, seed=5)
    fn, scale, base = full(24, 4 * width) * 0.1, full(3), full(24)
    at, following = (hyper_connection.site(one, scale, base, 1e-6, EPS, 20) for one in (fn, fn.flip(0)))
    streams, branch = form.draw(8, 4, width), form.draw(8, width, seed=1)
    u, post, comb = float64.hyper_connection(streams, fn, scale, base, 1e-6, EPS, 20)
    for part, exact in zip(hyper_connection.split(streams, at), (u, post, comb), strict=True):
        form.holds(part, exact)
    post, comb = float64.at(form.points, post), float64.at(form.points, comb)
    merged = float64.merged(streams, branch, post, comb, form.points)
    form.holds(hyper_connection.merge(streams, branch, post.to(form.kind), comb.to(form.kind)), merged, 2)
    flow = hyper_connection.Flow(streams, at)
    form.holds(flow.enter(norm, EPS), float64.rms_norm(float64.at(form.points, u), norm, EPS, form.points))
    flow.leave(branch, following)
    form.holds(flow.streams, merged, 2)
    then = float64.hyper_connection(flow.streams, fn.flip(0), scale, base, 1e-6, EPS, 20)[0]
    form.holds(flow.enter(norm, EPS), float64.rms_norm(float64.at(form.points, then), norm, EPS, form.points))
    form.holds(hyper_connection.collapse(streams), streams.double().mean(1))


def test_pooled_keys_scores_and_choice(form: Form) -> None:
    source, bias = form.draw(12, 64), full(4, 32)
    index = torch.tensor([[0, 1, 2, 3], [4, 9, 6, 11]])
    key, gate = source[index].chunk(2, -1)
    form.holds(indexer.pool_keys(source, index, bias), float64.pooled_key(key, gate, bias), 3)
    query, weight, keys = form.draw(11, 8, 32), full(11, 8), form.draw(1024, 32, seed=2)
    form.holds(indexer.scores(query, weight, keys), float64.index_scores(query, weight, keys))
    values = full(11, 1024).mul(2).round()  # ties
    counts = torch.arange(64, 64 + 11 * 80, 80).unsqueeze(1)
    found = indexer.select(values, counts, 64)
    assert [row.tolist() for row in found] == [float64.chosen(row[:many], 64) for row, many in zip(values, counts, strict=True)]


def test_the_members_of_chosen_pools_take_the_place_of_the_first_keys() -> None:
    keys, rows = torch.arange(3 * 20).view(3, 20), torch.tensor([2, 0])
    chosen, places = torch.tensor([[0, 2, 3], [1, 2, 4]]), torch.tensor([7, 0, 9, 4, 2])
    wanted = keys.clone()
    for row, own in zip(rows.tolist(), chosen.tolist(), strict=True):
        wanted[row, :12] = torch.tensor([4 * int(places[pool]) + member for pool in own for member in range(4)])
    for write in (indexer.host.replace_keys, indexer.ref.replace_keys):
        found = keys.clone()
        write(found, rows, chosen, places, 4)
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("coded", [False, True])
def test_attention_over_keys_that_lie_anywhere(form: Form, coded: bool) -> None:
    width = latent_attention.key_slots(67)
    query, latents = form.draw(5, 4, 64), form.draw(300, 64, seed=1)
    keys = torch.randint(0, 300, (5, width), generator=torch.Generator().manual_seed(1))
    bias, store = torch.zeros(5, 1, width), latents
    if coded:
        store = fp8.row_store((300,), 64, "cpu")
        fp8.write(store, torch.arange(300), latents)
        latents = fp8.read(store, torch.arange(300), form.kind)
    for row, count in enumerate((1, 5, 17, 33, 67)):
        bias[row, :, count:] = -torch.inf
        found = latent_attention.attend(query[row : row + 1], store, keys[row : row + 1], bias[row : row + 1], 0.25)[0]
        # Scores, shares and sums are rounded; a score of size s costs s roundings of its share.
        form.holds(found, float64.attended(query[row], latents[keys[row, :count]], 0.25), 6)


def test_routing(form: Form) -> None:
    logits = full(16, 24)
    logits[:, 1::2] = logits[:, ::2]
    correction = full(12).repeat_interleave(2) * 0.1
    chosen, weights = router.route(logits, correction, 3, 2.5)
    for row in range(16):
        best, shares = float64.routed(logits[row], correction, 3, 2.5)
        assert chosen[row].tolist() == best
        assert far(weights[row], shares) <= 8 * ROUNDING[torch.float32]


def coded_experts(count: int, hidden: int, width: int) -> tuple[list[list[Exl3Matrix]], list[Tensor]]:
    """Gate, up and down of each expert as stored, and as plain weights `[E, out, in]`."""
    draw = torch.Generator().manual_seed(3)

    def matrix(k: int, n: int) -> Exl3Matrix:
        words = torch.randint(-(1 << 15), 1 << 15, (k // 16, n // 16, 64), generator=draw).to(torch.int16)
        return Exl3Matrix(words, (torch.randn(k, generator=draw) * 0.1).half(), torch.randn(n, generator=draw).half(), "mcg")

    kinds = [[matrix(*shape) for _ in range(count)] for shape in ((hidden, width), (hidden, width), (width, hidden))]
    return kinds, [torch.stack([decode_outer(m.trellis, m.suh, m.svh, m.codebook).T for m in kind]) for kind in kinds]


@pytest.mark.parametrize("stored", ["coded", "plain"])
def test_experts(form: Form, stored: str) -> None:
    matrices, plain = coded_experts(6, 128, 256)
    packs: dict[str, Callable[[], experts.Experts]] = {
        "coded": lambda: experts.pack_exl3(*matrices),
        "plain": lambda: experts.pack_dense(*([weight.to(form.kind) for weight in kind] for kind in plain)),
    }
    if stored == "plain":
        plain = [kind.to(form.kind) for kind in plain]
    draw = torch.Generator().manual_seed(4)
    chosen = torch.stack([torch.randperm(6, generator=draw)[:3] for _ in range(11)])
    chosen[2], chosen[4, 1] = -1, -1
    x, weights = form.draw(11, 128), torch.rand(11, 3, generator=draw)
    found = experts.apply(x, chosen, weights, packs[stored](), 3.0)
    # Inputs and activations of coded experts are rounded to fp16, twice each; bf16 is rounded before and behind the activation.
    limit = (4 * ROUNDING[torch.float16] if stored == "coded" else 0) + 64 * ROUNDING[torch.float32]
    wanted = float64.experts(x, chosen, weights, plain, 3.0)
    assert far(found, wanted) <= limit + (3 * ROUNDING[form.kind] if form.points else 0)


def test_a_site_without_a_numpy_form_has_the_same_values() -> None:
    at = hyper_connection.site(full(24, 256) * 0.1, full(3), full(24), 1e-6, EPS, 20)
    streams = full(8, 4, 64)
    for one, other in zip(hyper_connection.split(streams, at), hyper_connection.split(streams, replace(at, host=None)), strict=True):
        assert far(one, other.double()) <= 32 * ROUNDING[torch.float32]
