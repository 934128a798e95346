"""What a step costs by its number of rows, measured before the first request. Leaves no trace in any committed state."""

import statistics
import time

from lockstep.cache import Sequence
from lockstep.draft.cost import RowCosts
from lockstep.model.glm import GlmModel

# Both sides of every step tile of 8 rows, and the short windows between them.
ROW_COUNTS = (1, 2, 4, 8, 9, 16, 17, 24, 25, 32)
REPEATS = 3


def measure_steps(model: GlmModel, costs: RowCosts) -> None:
    """Tell `costs` the median of `REPEATS` steps of each row count, head included, over an empty sequence in slot 0 and page 0."""
    for rows in ROW_COUNTS:
        seconds = [_step_s(model, rows) for _ in range(1 + REPEATS)]
        # The first step of a shape also pays for what is decided once.
        costs.observe(rows, statistics.median(seconds[1:]))


def _step_s(model: GlmModel, rows: int) -> float:
    began = time.perf_counter()
    model.logits(model.run_step([(Sequence(0, [0]), [0] * rows)])).cpu()
    return time.perf_counter() - began
