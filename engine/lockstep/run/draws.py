"""From row requests to a GPU's draws and back: the same tokens as `run.sampler`, all rows at once. Knows no model and no plan."""

from collections.abc import Sequence

import numpy as np
import torch

from lockstep.core.types import TokenLogprob
from lockstep.kernels.sampling.fused import FIELDS, MOST_ROWS, NUMBERS, RowSampler
from lockstep.run.sampler import History, RowRequest, refuse

_PLACE = {name: at for at, name in enumerate(FIELDS)}


class Draws:
    """Rows on a CUDA device. In a step: `ask`, `sampler.launch(logits)` (perhaps in a graph), `answers`."""

    def __init__(self, vocabulary: int, slots: int, device: torch.device | str) -> None:
        self.sampler = RowSampler(vocabulary, slots, device)
        self._numbers = self.sampler.settings.view(np.float64)
        self._free = list(range(slots))
        self._places: dict[int, tuple[int, History, int]] = {}

    def ask(self, rows: Sequence[RowRequest | None]) -> None:
        """Tell the device how each row is sampled; None for a row that is padding. Does not wait."""
        self.sampler.settings[:] = 0
        for at, row in enumerate(rows):
            if row:
                self._fill(at, row)
        lists = any(row and (row.ahead or row.banned or row.sampling.logit_bias) for row in rows)
        self.sampler.send(len(rows), lists=lists, masks=any(row and row.allowed is not None for row in rows))
        self._asked = rows

    def answers(self) -> list[tuple[int, TokenLogprob | None]]:
        """Token of each row asked for, -1 for padding and where `check` has words, and what was asked of its likelihood. Waits."""
        tokens, self._told = self.sampler.read(len(self._asked))
        found = []
        for row, token, told in zip(self._asked, tokens.tolist(), self._told, strict=True):
            top = told[4 : 4 + 2 * int(told[3])].reshape(-1, 2).tolist() if row and row.told > 0 else ()
            wanted = row is not None and row.told >= 0 and token >= 0
            found.append(
                (token if row else -1, TokenLogprob(float(told[2]), tuple((int(one), value) for one, value in top)) if wanted else None)
            )
        return found

    def check(self, at: int) -> None:
        """Raise SamplingError if row `at` of the last answers has no token."""
        row = self._asked[at]
        assert row is not None
        refuse(row, float(self._told[at][1]) if self._told[at][0] else -np.inf)

    def forget(self, history: History) -> None:
        """Its request is over."""
        if found := self._places.pop(id(history), None):
            self._free.append(found[0])

    def _fill(self, at: int, row: RowRequest) -> None:
        how = row.sampling
        weighs = how.has_penalties and row.history is not None
        biases = [pair for pair in how.logit_bias if pair[0] < self.sampler.vocabulary]
        ahead = row.ahead if weighs else ()
        listed = (*ahead, *(token for token, _ in biases), *row.banned)
        told = {
            "active": 1, "masked": int(row.allowed is not None), "temperature": how.temperature, "top_k": how.top_k, "top_p": how.top_p,
            "min_p": how.min_p, "seed": how.seed, "position": row.position, "repetition": how.repetition_penalty,
            "frequency": how.frequency_penalty, "presence": how.presence_penalty, "history": self._place(row.history) if weighs else -1,
            "ahead": len(ahead), "biases": len(biases), "bans": len(row.banned), "told": row.told,
        }  # fmt: skip
        for name, value in told.items():
            (self._numbers if name in NUMBERS else self.sampler.settings)[at, _PLACE[name]] = _signed(value) if name == "seed" else value
        self.sampler.ids[at, : len(listed)] = listed
        self.sampler.values[at, len(ahead) : len(ahead) + len(biases)] = [value for _, value in biases]
        if row.allowed is not None:
            bits = np.packbits(row.allowed, bitorder="little")
            self.sampler.masks[at, : len(bits)] = bits

    def _place(self, history: History | None) -> int:
        """The place on the device where a history's words are, as of now."""
        assert history is not None
        words = history.counts + (history.seen.astype(np.int64) << 31)
        if id(history) not in self._places:
            self._places[id(history)] = (self._free.pop(), history, len(history.added))
            self.sampler.remember(self._places[id(history)][0], None, words)
        place, _, known = self._places[id(history)]
        if len(history.added) > known:
            ids = np.unique(history.added[known:])
            self.sampler.remember(place, torch.from_numpy(ids), words[ids])
            self._places[id(history)] = (place, history, len(history.added))
        return place


def _signed(seed: int) -> int:
    return seed - (1 << 64) if seed >> 63 else seed


assert MOST_ROWS == 32
