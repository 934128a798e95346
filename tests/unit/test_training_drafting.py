"""The drafter in training form is the published drafter; its labels are what the trunk would say; rounds are counted as engines do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from embedded.make.batch import of_rows
from embedded.make.drafter import Drafter, initial
from embedded.make.drafting import Tally, block_labels, tokens_per_round
from embedded.make.optimiser import Muon, orthogonal, rate_at
from embedded.make.state import Means, load, save

from checkpoints.sizes import Sizes, drafter_config, model_config
from fixtures.drafter_oracle import OracleDrafter
from lockstep.config.drafter import parse_drafter_config
from lockstep.config.model import parse_model_config

torch.set_num_threads(1)
ROWS, LENGTH = 2, 320


def random_drafter() -> Drafter:
    size = Sizes()
    config = parse_drafter_config(drafter_config(size), parse_model_config(model_config(size)).text)
    generator = torch.Generator().manual_seed(3)
    weights = {n: v.detach() + 0.1 * torch.randn(v.shape, generator=generator) for n, v in initial(config, 1).items()}
    return Drafter(config, weights)


@torch.no_grad()
def test_blocks_of_packed_documents_have_the_oracles_states_and_walk() -> None:
    drafter = random_drafter()
    c = drafter.config
    generator = torch.Generator().manual_seed(4)
    embed = torch.randn(c.vocab_size, c.hidden_size, generator=generator)
    ids = torch.randint(0, 2000, (ROWS, LENGTH), generator=generator)
    marks = torch.full((ROWS, LENGTH), 2, dtype=torch.uint8)
    marks[:, 0] = marks[1, 40] = 4
    batch = of_rows(ids, marks)
    taps = torch.randn(ROWS * LENGTH, 3 * c.hidden_size, generator=generator)
    anchors = torch.tensor([0, 5, 300, LENGTH + 43, LENGTH + 300])
    hidden = drafter.block(taps, embed, batch.ids, batch.position, anchors)
    path, _ = drafter.walk(hidden, embed, batch.ids[anchors])
    sizes = {"layers": 1, "head_dim": c.head_dim, "eps": c.rms_norm_eps, "theta": c.rope_theta, "window": c.sliding_window}
    sizes |= {"mask": c.mask_token_id, "embed_scale": 1.0, "top_k": c.selector_top_k, "multiplier": 1.0, "softcap": 0.0}
    weights = {name: value.double().numpy() for name, value in drafter.weights.items()}
    for row, anchor in enumerate(anchors.tolist()):
        oracle = OracleDrafter(weights, sizes, embed.double().numpy(), embed.double().numpy())
        begin = anchor - int(batch.position[anchor])
        if anchor > begin:
            oracle.absorb(taps[begin:anchor].double().numpy())
        assert np.abs(oracle.block(int(batch.ids[anchor]), c.block_size) - hidden[row].numpy()).max() < 1e-3
        assert oracle.propose(int(batch.ids[anchor]), c.block_size)[0] == path[row].tolist()


def test_labels_end_where_the_trunk_would_have_said_something_else_or_the_reply_ends() -> None:
    marks = torch.tensor([[4, 1, 2, 2, 2, 2, 1, 2]], dtype=torch.uint8)
    batch = of_rows(torch.arange(10, 18)[None], marks)
    agrees = torch.tensor([True] * 4 + [False] + [True] * 3)
    previous, label, weight = block_labels(batch, agrees, torch.tensor([1, 4]), 4)
    assert previous[0].tolist() == [11, 12, 13, 14]
    assert label[0].tolist() == [12, 13, 14, 15]
    assert (weight > 0).tolist() == [[True, True, False, False], [True, False, False, False]]


def test_a_round_keeps_its_accepted_drafts_and_one_more_token() -> None:
    assert tokens_per_round([0, 0, 0, 0], 4) == (3, 3)
    assert tokens_per_round([3, 9, 9, 9, 9, 9], 6) == (5, 2)
    assert tokens_per_round([7, 7], 1) == (0, 0)


def test_confidence_counts_drafts_up_to_the_first_that_fails() -> None:
    tally = Tally()
    tally.add_confidence(np.array([[0.95, 0.95, 0.05], [0.95, 0.35, 0.05], [0.9, 0.9, 0.9]]), [2, 0, 0])
    assert tally.drafts.tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 0, 3]
    assert tally.held[9] == 2


def test_the_update_of_a_matrix_has_singular_values_near_one_and_the_asked_size() -> None:
    values = torch.linalg.svdvals(orthogonal(torch.randn(3, 48, 20)).float())
    assert values.min() > 0.5
    assert values.max() < 1.4
    matrix = torch.zeros(16, 64, requires_grad=True)
    matrix.grad = torch.randn(16, 64)
    Muon({"w": matrix}).step(0.01)
    assert matrix.detach().square().mean().sqrt().item() == pytest.approx(0.01 * 0.2, rel=0.3)


def test_the_rate_rises_stays_and_falls() -> None:
    assert rate_at(0.0, 0, 1.0) == pytest.approx(0.01)
    assert rate_at(0.2, 500, 1.0) == 1.0
    assert rate_at(0.7, 5000, 1.0) == pytest.approx(0.5)
    assert rate_at(1.0, 9000, 1.0) == 0.01


def test_saved_tensors_come_back_from_files_of_bounded_size(tmp_path) -> None:
    tensors = {f"t{i}": torch.randn(1 << 20) for i in range(6)}
    save(tmp_path, "model", tensors)
    files = list(tmp_path.iterdir())
    assert len(files) == 2
    assert all(file.stat().st_size < 16 << 20 for file in files)
    back = load(tmp_path, "model", "cpu")
    assert all(torch.equal(back[name], value) for name, value in tensors.items())
    with pytest.raises(FileNotFoundError, match="stage"):
        load(tmp_path, "drafter", "cpu")


def test_means_count_each_value_by_itself() -> None:
    means = Means()
    means.add(a=torch.tensor(1.0))
    means.add(a=torch.tensor(3.0))
    means.add(b=torch.tensor(5.0))
    assert means.read() == {"a": 2.0, "b": 5.0}
