"""verify: measures the running server, or another one, against bundled expectations. Knows which suites there are, none of their checks."""

from collections.abc import Sequence

from failure import Failure
from recipe import server
from recipe.job import Job
from verify import cli


def verify(job: Job, words: Sequence[str]) -> int:
    """`verify SUITE [OPTIONS]`. Exit status 0 if everything that was checked passed, 1 if not."""
    if not words or words[0] not in cli.SUITES:
        needed = f"verify and one of {', '.join(cli.SUITES)}; add --help for its options"
        raise Failure("E_CONFIG", found=f"verify {' '.join(words)}".strip(), needed=needed)
    record = server.find(job.places)
    if record is None:
        return cli.run(words[1:], job.ui, name=words[0])
    return cli.run(words[1:], job.ui, record.launch.url, record.launch.key(), words[0])
