"""Rows that stand in for placeholder tokens of prompts: each picture goes through the tower once, and its rows are kept by content.

Only rank 0 has a tower; the others get its rows. Knows prompts by position, no text and no files.
"""

import torch
from torch import Tensor

from lockstep.core.recent import Recent
from lockstep.core.types import EngineRequest, Picture
from lockstep.model.glm import GlmModel
from lockstep.model.vision import VisionTower

# Four of the largest pictures.
MOST_ROWS = 32768


class PictureRows:
    """Rows of pictures, the least recently used forgotten past `MOST_ROWS`; computed again they have the same bits."""

    def __init__(self, tower: VisionTower | None, model: GlmModel) -> None:
        self._tower, self._model, self._exchange = tower, model, model.exchange
        self._kept = Recent[tuple[str, str], Tensor](MOST_ROWS, spares_newest=True)
        self.computed = 0

    def within(self, request: EngineRequest, start: int, end: int) -> list[tuple[int, Tensor]]:
        """What lies among prompt rows start .. end - 1: pairs of a place counted from `start` and rows `[n, D]`."""
        found = []
        for picture in request.pictures:
            first, last = max(start, picture.start), min(end, picture.start + picture.tokens)
            if first < last:
                found.append((first - start, self._of(picture, request.namespace)[first - picture.start : last - picture.start]))
        return found

    def _of(self, picture: Picture, namespace: str) -> Tensor:
        """Namespaces share nothing: how long a picture takes must not tell who else sent it."""
        key = (namespace, picture.digest)
        if (rows := self._kept.get(key)) is None:
            rows = self._compute(picture)
            self._kept.put(key, rows, len(rows))
            self.computed += 1
        return rows

    @torch.inference_mode()
    def _compute(self, picture: Picture) -> Tensor:
        """Every rank must come here for the same pictures in the same order."""
        model, leads = self._model, self._exchange.share.rank == 0
        if leads and self._tower is None:
            raise ValueError("a prompt with pictures on an engine without a vision tower; needed: --vision and a checkpoint that has one")
        if self._tower is not None:
            frames = torch.frombuffer(bytearray(picture.pixels), dtype=torch.uint8)
            own = self._tower.rows(frames.view(picture.frames, picture.height, picture.width, 3))
        else:
            own = torch.zeros(picture.tokens, model.config.hidden_size, dtype=model.dtype, device=model.device)
        # exact: rank 0's rows plus nothing, so every rank has their bits.
        return self._exchange.add(own)
