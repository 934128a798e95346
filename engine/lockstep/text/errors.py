"""What can be wrong with a text. Standard library only."""

from lockstep.core.errors import LockstepError


class TextError(LockstepError):
    """A conversation or text of a request that cannot be turned into tokens. The message is for the client."""


class TooManyTokens(TextError):
    """A text far past the limit its caller set. `at_least` tokens were counted before the rest was left alone."""

    def __init__(self, at_least: int, limit: int) -> None:
        super().__init__(f"the text has more than {at_least} tokens; needed: at most {limit}")
        self.at_least, self.limit = at_least, limit


class CheckpointTextError(LockstepError):
    """The tokenizer or template of a checkpoint cannot be used. The message names the file and what was needed."""
