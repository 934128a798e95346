"""OFFLINE=1: what is there is used, what is not is named, and nobody outside is asked."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.clone_box import Box
from fixtures.gpu_host import GpuHost


@pytest.fixture
def host(box: Box, tmp_path: Path) -> Iterator[GpuHost]:
    made = GpuHost(box, tmp_path)
    yield made
    made.close()


def test_a_prepared_host_serves_without_a_network(host: GpuHost) -> None:
    done = host.box.run(**host.settings, OFFLINE="1")
    assert done.returncode == 0, done.stderr
    assert "LIVE!" in done.stdout


def test_an_image_that_has_to_be_pulled_is_named_and_not_pulled(host: GpuHost) -> None:
    host.images({})
    done = host.box.run(**host.settings, OFFLINE="1")
    assert done.returncode == 10
    assert "[E_OFFLINE]" in done.stderr
    assert "docker pull nvcr.io/nvidia/pytorch@sha256:" in done.stderr
    assert "docker load" in done.stderr
    assert not (host.place / "asked.jsonl").exists()


def test_packages_that_have_to_be_fetched_are_named(box: Box) -> None:
    for ready in (box.home / ".cache/glm-5.3-flash/environments").glob("host-*/ready.json"):
        ready.unlink()
    done = box.run(OFFLINE="1")
    assert done.returncode == 10
    assert "[E_OFFLINE]" in done.stderr
    assert "-m venv" in done.stderr
