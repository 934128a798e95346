"""The sampler on a CUDA device: token ids of the plain one in every mode, rows that do not see each other, graph as launch."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fixtures.draw_cases import DRAWN, GREEDY, MODES, plain, request, shapes
from lockstep.run.draws import Draws
from lockstep.run.sampler import RowRequest, SamplingError, logprob

pytestmark = pytest.mark.gpu
SIZES = {"real": (154880, 154880), "embedded": (2276, 2304)}


@pytest.fixture(scope="module", params=SIZES)
def size(request: pytest.FixtureRequest) -> tuple[int, int]:
    return SIZES[request.param]


@pytest.fixture(scope="module")
def draws(size: tuple[int, int]) -> Draws:
    return Draws(size[0], 64, "cuda")


def tokens_of(draws: Draws, logits: Tensor, rows: list[RowRequest]) -> list[int]:
    draws.ask(rows)
    draws.sampler.launch(logits.cuda())
    found = draws.read()
    for row in rows:
        if row.history:
            draws.forget(row.history)
    return found


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("mode", MODES)
def test_ids_are_those_of_the_plain_sampler(draws: Draws, size: tuple[int, int], mode: str, kind: torch.dtype):
    rows = {name: row.to(kind) for name, row in shapes(*size).items()}
    asked = [request(MODES[mode], 100 + at, size[0]) for at in range(len(rows))]
    wanted = {name: plain(row, one, size[0]) for (name, row), one in zip(rows.items(), asked, strict=True)}
    found = dict(zip(rows, tokens_of(draws, torch.stack(list(rows.values())), asked), strict=True))
    assert found == wanted


def test_masks_and_bans(draws: Draws, size: tuple[int, int]):
    vocabulary = size[0]
    logits = torch.stack([shapes(*size)["ties"]] * 4)
    some = np.arange(vocabulary) % 97 == 5
    only = np.arange(vocabulary) == vocabulary - 1
    banned = frozenset(logits[0, :vocabulary].topk(40).indices.tolist())
    asked = [
        request(DRAWN, 1, vocabulary, allowed=some),
        request(GREEDY, 2, vocabulary, allowed=only),
        request(replace(DRAWN, top_p=0.9), 3, vocabulary, banned=banned),
        request(MODES["penalties"], 4, vocabulary, allowed=some, banned=banned),
    ]
    assert tokens_of(draws, logits, asked) == [plain(row, one, vocabulary) for row, one in zip(logits, asked, strict=True)]


def test_drafts_ahead_count_as_chosen(draws: Draws, size: tuple[int, int]):
    vocabulary = size[0]
    logits = torch.stack([shapes(*size)["normal"]] * 3)
    one = request(MODES["penalties"], 9, vocabulary)
    assert one.history
    best = logits[0, :vocabulary].topk(3).indices.tolist()
    found = tokens_of(draws, logits, [replace(one, ahead=tuple(best[:count])) for count in (0, 1, 3)])
    wanted = []
    for row, token in zip(logits, (best[0], None, None), strict=True):
        wanted.append(plain(row, one, vocabulary))
        for added in (token,) if token is not None else best[1:]:
            one.history.add(added)
    assert found == wanted
    # What was added since is known at the next step.
    assert tokens_of(draws, logits[:1], [one]) == [plain(logits[0], one, vocabulary)]


def test_likelihoods(draws: Draws, size: tuple[int, int]):
    vocabulary = size[0]
    kept = [row for row in shapes(*size).values() if bool((row[:vocabulary].abs() < 1e9).all())]
    asked = [request(DRAWN, 30 + at, vocabulary, told=told) for at, told in zip(range(len(kept)), (0, 1, 5, 20, 20, 20, 20), strict=False)]
    draws.draw(asked, torch.stack(kept).cuda())
    for at, (row, one) in enumerate(zip(kept, asked, strict=True)):
        for token in (draws.token(at), 5):
            assert draws.likelihood(at, token, one.told).logprob == pytest.approx(
                logprob(row[:vocabulary].numpy(), token, 0).logprob, abs=1e-8
            )
        told, wanted = draws.likelihood(at, draws.token(at), one.told), logprob(row[:vocabulary].numpy(), draws.token(at), one.told)
        assert [name for name, _ in told.top] == [name for name, _ in wanted.top]
        assert [value for _, value in told.top] == pytest.approx([value for _, value in wanted.top], abs=1e-8)


@pytest.mark.parametrize("spoil", [lambda row: row.index_fill(0, torch.tensor([7]), torch.nan), lambda row: row * -torch.inf * row.abs()])
def test_a_row_without_a_token_says_why_and_spoils_no_other(draws: Draws, size: tuple[int, int], spoil: Callable[[Tensor], Tensor]):
    row = shapes(*size)["normal"].abs() + 1
    asked: list[RowRequest] = [request(DRAWN, 1, size[0]) for _ in range(3)]
    draws.ask(asked)
    draws.sampler.launch(torch.stack([row, spoil(row), row]).cuda())
    found = draws.read()
    assert found == [plain(row, asked[0], size[0]), -1, plain(row, asked[2], size[0])]
    with pytest.raises(SamplingError, match=r"largest logit is (nan|-inf)"):
        draws.token(1)


def test_company_place_and_graph_change_nothing(draws: Draws, size: tuple[int, int]):
    rows = list(shapes(*size).values())
    logits = torch.stack([rows[at % len(rows)] for at in range(32)])
    modes = [how for name, how in MODES.items() if name != "hot"]
    asked = [request(modes[at % len(modes)], at, size[0]) for at in range(32)]
    whole = tokens_of(draws, logits, asked)
    for count in (1, 3, 8, 17):
        for first in {0, (32 - count) // 2, 32 - count}:
            part = slice(first, first + count)
            assert tokens_of(draws, logits[part], asked[part]) == whole[part], f"{count} rows from {first}"
    given = logits.cuda()
    draws.ask(asked)
    draws.sampler.launch(given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        draws.sampler.launch(given)
    for _ in range(3):
        draws.sampler.tokens.fill_(-7)
        graph.replay()
        assert draws.read() == whole
    mixed = [asked[at] if at % 2 else None for at in range(32)]
    draws.ask(mixed)
    graph.replay()
    assert draws.read() == [token if at % 2 else -1 for at, token in enumerate(whole)]
