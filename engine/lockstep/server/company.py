"""Several generations of one HTTP request, side by side. Knows no endpoint's JSON."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from lockstep.server.generation import Generation
from lockstep.text.reply import Delta

# Deltas that wait for their reader; past these the generations wait too.
HELD_DELTAS = 256

Spoken = tuple[int, Delta | None]


async def side_by_side(generations: Sequence[Generation]) -> AsyncGenerator[Spoken, None]:
    """Deltas as they come with their generation's place, None at its end. Raises ApiError for the first that fails; then all end.

    At most as many as the engine has slots are asked for at once, so that one request never fills the queue. Once one has begun, the others
    wait for a place in it."""
    if len(generations) == 1:
        async with aclosing(generations[0].deltas()) as deltas:
            async for delta in deltas:
                yield 0, delta
        yield 0, None
        return
    spoken: asyncio.Queue[Spoken | None] = asyncio.Queue(HELD_DELTAS)
    places = asyncio.Semaphore(generations[0].slots)

    async def speak(place: int) -> None:
        async with places, aclosing(generations[place].deltas()) as deltas:
            async for delta in deltas:
                if not generations[place].goes_on:
                    for one in generations:
                        one.goes_on = True
                await spoken.put((place, delta))
        await spoken.put((place, None))

    async def speak_all() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for place in range(len(generations)):
                    group.create_task(speak(place))
        finally:
            await spoken.put(None)

    work = asyncio.create_task(speak_all())
    try:
        while (item := await spoken.get()) is not None:
            yield item
        try:
            await work
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
    finally:
        work.cancel()
        while not spoken.empty():
            spoken.get_nowait()
        await asyncio.gather(work, return_exceptions=True)
