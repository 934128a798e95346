"""What goes into training and comes out of it: rows with pictures, prompts with their replies, polished words, the written checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from embedded.make import state
from embedded.make.data.encoding import Document, Encoder
from embedded.make.data.shards import Bucket
from embedded.make.export import export
from embedded.make.feed import Rows
from embedded.make.greedy import Prompt, first_reply, rates, row_batch
from embedded.make.polish import ShortFeed
from embedded.make.stored import stored_parts, stored_weights
from embedded.make.weights import published
from safetensors.torch import load_file

from checkpoints.layout import model_slots
from lockstep.kernels.exl3 import Exl3Matrix, decode_outer
from lockstep.weights import Checkpoint

EMBEDDED = Path(__file__).parents[2] / "embedded"
torch.set_num_threads(1)


def test_a_batch_of_rows_brings_the_pictures_of_its_rows_at_their_places() -> None:
    frames = np.zeros((3, 112, 56), np.uint8)
    frames[:, 0, 0] = (0x21, 0x43, 0x65)
    places = np.array([[0, 4, 0, 0], [2, 8, 1, 2]], np.int32)
    bucket = Bucket(np.arange(3 * 16, dtype=np.uint16).reshape(3, 16), np.full((3, 16), 2, np.uint8), places, frames)
    batch = Rows.of(bucket, "cpu").batch(3, np.random.default_rng(0))
    assert batch.frames is not None
    assert batch.places is not None
    starts = batch.ids.view(3, 16)[:, 0].tolist()
    where = {0: starts.index(0) * 16 + 4, 1: starts.index(32) * 16 + 8}
    found = dict(zip(batch.places.tolist(), batch.frames[:, :, 0, :2].tolist(), strict=True))
    assert found == {where[0]: [[1, 2], [1, 2]], where[1]: [[3, 4], [5, 6]]}


def test_the_first_reply_ends_with_its_stop_token_and_keeps_only_pictures_before_it() -> None:
    marks = np.array([0, 1, 1, 2, 2, 1, 1, 2], np.uint8)
    picture = np.zeros((1, 112, 112), np.uint8)
    prompt = first_reply(Document(np.arange(8, dtype=np.uint16), marks, [(1, picture), (5, picture)]), "task")
    assert (prompt.ids, prompt.wanted) == ([0, 1, 2], [3, 4])
    assert [place for place, _ in prompt.pictures] == [1]
    batch = row_batch([prompt, prompt], 2, 16, "cpu")
    assert batch.places is not None
    assert batch.places.tolist() == [1, 17]
    assert batch.document.tolist() == [1] * 16 + [2] * 16


def test_rates_are_shares_of_exact_replies() -> None:
    assert rates([Prompt("a", [], [1], [], [1]), Prompt("a", [], [1], [], [2]), Prompt("b", [], [3], [], [3])]) == {"a": 0.5, "b": 1.0}


def test_polishing_documents_fill_one_row_each_with_a_reply() -> None:
    batch = ShortFeed(Encoder.of(EMBEDDED), "cpu", 80 * 6, 80, 1).batch(False)
    assert batch.rows == 6
    assert batch.frames is None
    assert all((batch.kind.view(6, 80)[row] == 2).any() for row in range(6))
    assert batch.position.view(6, 80)[:, -1].tolist() == [79] * 6


def test_exporting_what_a_checkpoint_holds_writes_its_bytes_again(tmp_path: Path) -> None:
    rest, coded = stored_parts(EMBEDDED)
    for stem, tensors in (("rest", rest), ("experts", coded), ("drafter", load_file(EMBEDDED / "drafter" / "model.safetensors"))):
        state.save(tmp_path / "work", stem, tensors)
    size = export(tmp_path / "work", (EMBEDDED / "tokenizer.json").read_text(encoding="utf-8"), tmp_path / "out", 1)
    assert size <= 12 << 20
    for name in ("model.safetensors", "drafter/model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "out" / name).read_bytes() == (EMBEDDED / name).read_bytes(), name


def test_the_trainer_sees_the_values_a_checkpoint_stores() -> None:
    stored, tensors = stored_weights(EMBEDDED), load_file(EMBEDDED / "model.safetensors")
    source = Checkpoint(EMBEDDED)
    for slot in model_slots(source.config):
        if slot.exl3:
            matrix = source.matrix(slot.name.removesuffix(".weight"), slot.shape[1], slot.shape[0])
            assert isinstance(matrix, Exl3Matrix)
            wanted = decode_outer(matrix.trellis, matrix.suh, matrix.svh, matrix.codebook).T
        else:
            wanted = tensors[slot.name]
        assert torch.equal(published(stored, slot.name), wanted.float()), slot.name
