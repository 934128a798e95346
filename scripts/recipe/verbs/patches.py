"""patches: shows and changes the patch series. Knows where its work tree lies, nothing else of it."""

from collections.abc import Sequence

from patchwork import cli
from recipe.job import Job


def patches(job: Job, words: Sequence[str]) -> int:
    """`patches list|verify|edit|refresh|pin`. Raises Failure E_CONFIG, E_PIN or E_PATCHES."""
    return cli.run(job.config.root, job.config.folder("STATE_DIR") / "patches", words, job.ui.line)
