"""A budget split evenly between those who can use it; what one cannot use goes to the others."""

from collections.abc import Sequence


def even_shares(wants: Sequence[int], budget: int) -> list[int]:
    """Share of each want, none above it, together at most `budget`. Among equals the later gets the odd unit."""
    shares, left = [0] * len(wants), len(wants)
    for at in sorted(range(len(wants)), key=lambda at: wants[at]):
        shares[at] = min(wants[at], max(0, budget) // left)
        budget, left = budget - shares[at], left - 1
    return shares
