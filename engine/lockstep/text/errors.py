"""What can be wrong with a text. Standard library only."""

from __future__ import annotations

from lockstep.core.errors import LockstepError


class TextError(LockstepError):
    """A conversation or text of a request that cannot be turned into tokens. The message is for the client."""


class CheckpointTextError(LockstepError):
    """The tokenizer or template of a checkpoint cannot be used. The message names the file and what was needed."""
