"""One daemon, one base image, one clone and its first start for all tests of this folder."""

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.docker_installation import Daemon, Installation


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.docker)
            # Whichever comes first waits for the base image, the host's tools and the first build.
            item.add_marker(pytest.mark.timeout(1200))


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    # A socket's path is short, so not in pytest's own folder.
    place = Path(tempfile.mkdtemp(prefix="docker-"))
    # The server's user is nobody; files to read must be reachable for it.
    place.chmod(0o755)
    made = Daemon(place)
    yield made
    made.end()
    subprocess.run(["rm", "-rf", str(place)], check=True)


@pytest.fixture(scope="session")
def installation(daemon: Daemon) -> Iterator[Installation]:
    made = Installation(daemon, daemon.place)
    yield made
    made.end()


@pytest.fixture
def live(installation: Installation) -> Installation:
    """The installation with its first engine serving."""
    installation.settle()
    return installation
