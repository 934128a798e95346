"""The bounded memory that pictures, grammars and pieces of text share, against a slow one that keeps a list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.recent import Recent

MOST = 10
PUTS = st.tuples(st.integers(0, 5), st.integers(1, 14))


@given(st.lists(st.one_of(PUTS, st.integers(0, 5)), max_size=40), st.booleans())
def test_what_was_used_lately_is_there_as_long_as_all_of_it_fits(steps: list[tuple[int, int] | int], spares_newest: bool) -> None:
    kept, told = Recent[int, str](MOST, spares_newest), list[tuple[int, str, int]]()
    for at, step in enumerate(steps):
        key = step if isinstance(step, int) else step[0]
        known = next((entry for entry in told if entry[0] == key), None)
        told = [entry for entry in told if entry[0] != key]
        if isinstance(step, int):
            assert kept.get(key) == (known[1] if known else None)
            told += [known] if known else []
            continue
        kept.put(key, f"value {at}", step[1])
        told.append((key, f"value {at}", step[1]))
        while sum(size for *_, size in told) > MOST and len(told) > spares_newest:
            told.pop(0)
    assert [kept.get(key) for key in range(6)] == [next((value for name, value, _ in told if name == key), None) for key in range(6)]


def test_one_that_is_larger_than_the_memory_stays_alone_or_not_at_all() -> None:
    for spares_newest, found in ((True, "large"), (False, None)):
        kept = Recent[str, str](MOST, spares_newest)
        kept.put("a", "small", 1)
        kept.put("b", "large", MOST + 1)
        assert (kept.get("a"), kept.get("b")) == (None, found)
