"""NumPy's building blocks treat rows alone, the check notices when one does not, and the torch path takes over then."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from lockstep.kernels import host

torch.set_num_threads(1)
ROWS = np.random.default_rng(1).standard_normal((32, 24)).astype(np.float32)


def test_this_machine_is_trusted() -> None:
    assert host.trusted()
    assert host.runs(torch.zeros(3, 4))
    assert not host.runs(torch.zeros(3, 4, dtype=torch.bfloat16))


def test_the_check_notices_rows_that_see_their_count_their_neighbours_or_their_place() -> None:
    assert host.rows_are_independent(lambda x: x * 2, ROWS)
    assert not host.rows_are_independent(lambda x: x * np.float32(1 + 1e-6 * len(x)), ROWS)
    assert not host.rows_are_independent(lambda x: x + x.mean(), ROWS)
    assert not host.rows_are_independent(lambda x: x + np.arange(len(x), dtype=np.float32)[:, None] * 1e-3, ROWS)


@pytest.fixture
def distrusted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose NumPy adds up rows together."""
    host.trusted.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(host, "_BLOCKS", (lambda x: x + x.mean(),))
        yield
    host.trusted.cache_clear()


@pytest.mark.usefixtures("distrusted")
def test_rows_fill_whole_tiles_where_numpy_is_not_trusted() -> None:
    row = torch.zeros(1, 4)
    assert not host.runs(row)
    assert [host.padded(count, row, 8) for count in (1, 8, 9)] == [8, 8, 16]


def test_rows_stand_as_they_are_where_it_is() -> None:
    assert [host.padded(count, torch.zeros(1, 4), 8) for count in (1, 8, 9)] == [1, 8, 9]


def test_a_tensor_and_its_array_are_one_memory() -> None:
    values = np.zeros((2, 3), np.float32)
    made, kept = host.tensor(values), torch.zeros(4)
    assert host.array(made) is values
    made += 1
    assert values.all()
    assert host.parameter(kept) is host.parameter(kept)
    kept += 2
    assert (host.parameter(kept) == 2).all()


def test_lengths_of_one_row_and_of_many_are_the_same_bits() -> None:
    many = host.inverse_length(ROWS, 1e-5, 1 / 24)
    assert isinstance(many, np.ndarray)
    for row, found in zip(ROWS, many, strict=True):
        assert (row[None] * host.inverse_length(row[None], 1e-5, 1 / 24)).tobytes() == (row[None] * found).tobytes()


def test_far_out_shares_end_at_zero_and_one() -> None:
    with np.errstate(over="ignore"):
        assert host.sigmoid(np.array([[-200.0, 0.0, 200.0]], np.float32)).tolist() == [[0.0, 0.5, 1.0]]
