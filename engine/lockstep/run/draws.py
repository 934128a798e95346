"""From row requests to a GPU's draws and back: the same tokens as `run.sampler`, all rows at once. Knows no model and no plan."""

from collections.abc import Callable, Sequence
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.core.types import TokenLogprob
from lockstep.kernels.sampling.fused import FIELDS, NUMBERS, RowSampler
from lockstep.run.sampler import History, RowRequest, choose, logprob, refuse

_PLACE = {name: at for at, name in enumerate(FIELDS)}


class RowDraws(Protocol):
    """The draws of some rows. `row` is asked for only where the draw is still to be made."""

    def token(self, at: int, row: Callable[[], RowRequest]) -> int:
        """Raises SamplingError for a row that has none."""
        ...

    def likelihood(self, at: int, token: int, top: int) -> TokenLogprob:
        """See `sampler.logprob`."""
        ...


class PlainDraws:
    """Rows `[n, V]` on the host, drawn one by one."""

    def __init__(self, logits: NDArray[np.float32]) -> None:
        self._logits = logits

    def token(self, at: int, row: Callable[[], RowRequest]) -> int:
        """See `RowDraws`."""
        return choose(self._logits[at], row())

    def likelihood(self, at: int, token: int, top: int) -> TokenLogprob:
        """See `RowDraws`."""
        return logprob(self._logits[at], token, top)


class Draws:
    """Rows on a CUDA device. In a step: `draw`, or `ask`, `sampler.launch(logits)` (perhaps in a graph) and `read`."""

    def __init__(self, vocabulary: int, slots: int, device: torch.device | str) -> None:
        self.sampler = RowSampler(vocabulary, slots, device)
        self._numbers = self.sampler.settings.view(np.float64)
        self._free = list(range(slots))
        # In the order in which they were used last; those beyond the places there are go without, and are sent again.
        self._places: dict[int, tuple[int, History, int]] = {}

    def draw(self, rows: Sequence[RowRequest], logits: Tensor) -> Self:
        """Draw for rows `logits [n, V]` and wait."""
        self._logits = logits
        self.ask(rows)
        self.sampler.launch(logits)
        self.read()
        return self

    def ask(self, rows: Sequence[RowRequest | None]) -> None:
        """Tell the device how each row is sampled; None for a row that is padding. Does not wait."""
        self.sampler.settings[:] = 0
        for at, row in enumerate(rows):
            if row:
                self._fill(at, row)
        lists = any(row and (row.ahead or row.banned or row.sampling.logit_bias) for row in rows)
        self.sampler.send(len(rows), lists=lists, masks=any(row and row.allowed is not None for row in rows))
        self._asked = rows

    def read(self) -> list[int]:
        """Token of each row asked for, -1 for padding and for one that has none. Waits."""
        tokens, self._told = self.sampler.read(len(self._asked))
        self._tokens = [token if row else -1 for row, token in zip(self._asked, tokens.tolist(), strict=True)]
        return self._tokens

    def token(self, at: int, row: Callable[[], RowRequest] | None = None) -> int:
        """See `RowDraws`."""
        asked = self._asked[at]
        if self._tokens[at] < 0 and asked:
            refuse(asked, float(self._told[at][1]) if self._told[at][0] else -np.inf)
        return self._tokens[at]

    def likelihood(self, at: int, token: int, top: int) -> TokenLogprob:
        """See `RowDraws`."""
        if token != self._tokens[at]:
            return logprob(self._logits[at, : self.sampler.vocabulary].float().cpu().numpy(), token, top)
        told = self._told[at]
        pairs = told[4 : 4 + 2 * int(told[3])].reshape(-1, 2).tolist() if top else ()
        return TokenLogprob(float(told[2]), tuple((int(one), value) for one, value in pairs))

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
        place, _, known = self._places.pop(id(history), (-1, history, 0))
        if place < 0:
            place = self._free.pop() if self._free else self._places.pop(next(iter(self._places)))[0]
            self.sampler.remember(place, None, words)
        elif len(history.added) > known:
            ids = np.unique(history.added[known:])
            self.sampler.remember(place, torch.from_numpy(ids), words[ids])
        self._places[id(history)] = (place, history, len(history.added))
        return place


def _signed(seed: int) -> int:
    return seed - (1 << 64) if seed >> 63 else seed
