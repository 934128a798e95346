"""Starting a process that nobody forgets. Asyncio only; knows no command and no protocol."""

import asyncio
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence


async def spawned(command: Sequence[str], environment: Mapping[str, str]) -> Process:
    """A process with pipes for its standard input and output, silent otherwise.

    A caller who is cancelled meanwhile leaves none behind: uvloop would go on with it and tell nobody.
    """
    spawning = asyncio.ensure_future(asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environment))
    try:
        return await asyncio.shield(spawning)
    except asyncio.CancelledError:
        process = await spawning
        process.kill()
        await process.wait()
        raise
