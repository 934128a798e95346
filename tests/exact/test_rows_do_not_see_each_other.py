"""A row's bits depend on its own past only: not on how many rows ride along, their order, other sequences, slots, pages or slices."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from fixtures import random_model
from lockstep.cache import Sequence
from lockstep.kernels import host

torch.set_num_threads(1)

VOCAB = 300
REPLY = 14
PROMPTS = (1, 3, 64, 66, 130, 197)


@dataclass
class Story:
    """A prompt, its forced reply, and what serial steps alone gave: logits before each reply token, state hash after each commit."""

    prompt: list[int]
    reply: list[int]
    logits: list[Tensor]
    hashes: list[str]

    @property
    def tokens(self) -> int:
        return len(self.prompt) + len(self.reply) + 32


@dataclass
class Telling:
    """A story being told again: `told` reply tokens are committed."""

    story: Story
    sequence: Sequence
    prompted: int = 0
    told: int = 0


def alone(engine, prompt: list[int], reply: list[int]) -> Story:
    story = Story(prompt, reply, [], [])
    sequence = engine.sequence(story.tokens)
    story.logits.append(engine.model.head(engine.model.run_prompt(sequence, prompt).hidden)[0])
    story.hashes.append(engine.model.state_hash(sequence))
    for token in reply:
        story.logits.append(engine.step([(sequence, [token])], [1])[0])
        story.hashes.append(engine.model.state_hash(sequence))
    engine.release(sequence)
    return story


@pytest.fixture(scope="module", params=["dense experts", "EXL3 experts", "EXL3 experts without NumPy", "bf16 activations"])
def told(request: pytest.FixtureRequest):
    """An engine and its stories told alone."""
    weights = random_model.RandomWeights(7, coded_experts=request.param != "dense experts")
    dtype = torch.bfloat16 if request.param == "bf16 activations" else torch.float32
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "EXL3 experts without NumPy":
            patch.setattr(host, "trusted", lambda: False)
        engine = random_model.Engine(random_model.text_config(), weights, dtype=dtype)
        draw = random.Random(3)
        ids = lambda n: [draw.randrange(VOCAB) for _ in range(n)]  # noqa: E731
        yield engine, [alone(engine, ids(n), ids(REPLY)) for n in PROMPTS]


def test_the_same_story_alone_again_in_other_places_gives_the_same_bits(told) -> None:
    engine, stories = told
    story = stories[-1]
    again = alone(engine, story.prompt, story.reply)
    assert again.hashes == story.hashes
    assert all(torch.equal(a, b) for a, b in zip(again.logits, story.logits, strict=True))


@pytest.mark.parametrize("seed", range(6))
def test_random_company_slices_windows_and_rejected_rows_change_nothing(told, seed: int) -> None:
    engine, stories = told
    draw = random.Random(seed)
    chosen = draw.sample(stories, draw.randint(2, len(stories)))
    tellings = [Telling(story, engine.sequence(story.tokens)) for story in chosen]
    rounds = partly_kept = 0
    while tellings:
        asking = [telling for telling in tellings if telling.prompted < len(telling.story.prompt)]
        if asking and draw.random() < 0.4:
            prompt_slice(engine, draw.choice(asking), draw)
            continue
        ready = [telling for telling in tellings if telling not in asking]
        if ready:
            partly_kept += step(engine, draw.sample(ready, draw.randint(1, len(ready))), draw)
            rounds += 1
        for telling in [t for t in ready if t.told == REPLY]:
            engine.release(telling.sequence)
            tellings.remove(telling)
    assert rounds
    assert partly_kept


def prompt_slice(engine, telling: Telling, draw: random.Random) -> None:
    end = min(telling.prompted + 64 * draw.randint(1, 3), len(telling.story.prompt))
    hidden = engine.model.run_prompt(telling.sequence, telling.story.prompt[telling.prompted : end]).hidden
    telling.prompted = end
    if end == len(telling.story.prompt):
        assert torch.equal(engine.model.head(hidden)[0], telling.story.logits[0])
        assert engine.model.state_hash(telling.sequence) == telling.story.hashes[0]


def step(engine, tellings: list[Telling], draw: random.Random) -> int:
    """One step over random windows: some rows of the story, then rows that will be rejected. Returns the windows partly kept."""
    room, windows, keep = 32, [], []
    for number, telling in enumerate(tellings):
        most = room - (len(tellings) - number - 1)
        right = draw.randint(1, min(REPLY - telling.told, 6, most))
        wrong = draw.choice([0, 0, 1, 3, 9])
        ids = telling.story.reply[telling.told : telling.told + right]
        ids = (ids + [draw.randrange(VOCAB) for _ in range(wrong)])[:most]
        windows.append((telling.sequence, ids))
        keep.append(right)
        room -= len(ids)
    logits = engine.step(windows, keep)
    first = 0
    for telling, (_, ids), kept in zip(tellings, windows, keep, strict=True):
        wanted = telling.story.logits[telling.told + 1 : telling.told + 1 + kept]
        assert torch.equal(logits[first : first + kept], torch.stack(wanted))
        telling.told += kept
        assert engine.model.state_hash(telling.sequence) == telling.story.hashes[telling.told]
        first += len(ids)
    return sum(kept < len(ids) for kept, (_, ids) in zip(keep, windows, strict=True))


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 9, 15, 16, 17, 24, 25, 31, 32])
def test_every_row_count_from_1_to_32_gives_a_row_the_same_bits_at_any_place(told, rows: int) -> None:
    engine, stories = told
    story = stories[3]
    sequences = [engine.sequence(story.tokens) for _ in range(rows)]
    draw = random.Random(rows)
    for sequence in sequences:
        engine.model.run_prompt(sequence, story.prompt)
    mine = draw.randrange(rows)
    windows = [(sequence, [story.reply[0] if place == mine else draw.randrange(VOCAB)]) for place, sequence in enumerate(sequences)]
    logits = engine.step(windows, [1] * rows)
    found = engine.model.state_hash(sequences[mine])
    for sequence in sequences:
        engine.release(sequence)
    assert torch.equal(logits[mine], story.logits[1])
    assert found == story.hashes[1]


def test_keeping_nothing_leaves_the_state_as_it_was(told) -> None:
    engine, stories = told
    story = stories[4]
    sequence = engine.sequence(story.tokens)
    engine.model.run_prompt(sequence, story.prompt)
    engine.step([(sequence, [1, 2, 3])], [0])
    assert engine.model.state_hash(sequence) == story.hashes[0]
    assert torch.equal(engine.step([(sequence, story.reply[:1])], [1])[0], story.logits[1])
    engine.release(sequence)


def test_the_hash_sees_every_part_of_the_state(told) -> None:
    engine, stories = told
    story = stories[4]
    sequence = engine.sequence(story.tokens)
    engine.model.run_prompt(sequence, story.prompt)
    copy = engine.slots.committed(sequence.slot)
    page = sequence.pages[1]
    parts = [
        engine.slots.kda[2, copy, 1, 3], engine.slots.conv_tail[0, sequence.slot, 2], engine.slots.index_tail[0, sequence.slot, 0],
        engine.pool.latents[0, page * 64 + 5], engine.pool.pooled[0, page * 16 + 15],
    ]  # fmt: skip
    for part in parts:
        kept = part.clone()
        part[0] += 1
        assert engine.model.state_hash(sequence) != story.hashes[0]
        part.copy_(kept)
    engine.slots.kda[:, copy ^ 1] += 1
    engine.pool.latents[0, sequence.pages[2] * 64 + 2 :][:1] += 1
    assert engine.model.state_hash(sequence) == story.hashes[0]
    engine.release(sequence)


def test_misuse_is_refused_with_what_was_needed(told) -> None:
    engine, _ = told
    sequence = engine.sequence(70)
    run = engine.model
    run.run_prompt(sequence, [5] * 3)
    with pytest.raises(ValueError, match="at a multiple of 64"):
        run.run_prompt(sequence, [5])
    with pytest.raises(ValueError, match="run_step first"):
        run.commit([(sequence, [5])], [1])
    with pytest.raises(ValueError, match=r"1\.\.32 rows"):
        run.run_step([(sequence, [5] * 33)])
    with pytest.raises(ValueError, match="each sequence once"):
        run.run_step([(sequence, [5]), (sequence, [6])])
    window = [(sequence, [5, 6])]
    run.run_step(window)
    with pytest.raises(ValueError, match=r"0\.\.n each"):
        run.commit(window, [3])
    short = Sequence(sequence.slot, sequence.pages[:1], 63)
    with pytest.raises(ValueError, match="1 more pages of 64"):
        run.run_step([(short, [5, 6])])
    engine.release(sequence)


def test_widths_at_which_vector_code_ends_inside_a_row_are_refused() -> None:
    with pytest.raises(ValueError, match="n_routed_experts is 6 a rank; needed: a multiple of 4"):
        random_model.Engine(random_model.text_config(n_routed_experts=6), random_model.RandomWeights(7, coded_experts=False))
