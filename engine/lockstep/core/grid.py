"""The grid of absolute positions: prompts are computed and cut in tiles of 64 tokens, and a page of memory holds one tile."""

TILE = 64
PAGE_TOKENS = TILE


def pages_of(tokens: int) -> int:
    """Pages that hold `tokens` tokens."""
    return -(-tokens // PAGE_TOKENS)


def last_tile(tokens: int) -> int:
    """Where the tile that holds the last of `tokens` tokens begins."""
    return (tokens - 1) // TILE * TILE
