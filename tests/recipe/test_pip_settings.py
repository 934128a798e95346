"""pip as the user has set it up: its packages come from where he says, and lie where this program needs them."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from failure import Failure
from fixtures.clone_box import Box
from recipe import config
from recipe.environment import Environment
from recipe.job import Job
from recipe.ui import Ui

NAME = "something-1.0"


def wheel(folder: Path) -> str:
    """Writes the wheel of a package with one module; its line of a hash-locked list."""
    facts = {"METADATA": "Metadata-Version: 2.1\nName: something\nVersion: 1.0\n", "RECORD": ""}
    facts["WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    folder.mkdir()
    made = folder / f"{NAME}-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as packed:
        packed.writestr("something.py", "")
        for name, text in facts.items():
            packed.writestr(f"{NAME}.dist-info/{name}", text)
    return f"something==1.0 --hash=sha256:{hashlib.sha256(made.read_bytes()).hexdigest()}\n"


def job_of(box: Box, **environment: str) -> Job:
    (box.root / ".state").mkdir(exist_ok=True)
    given = box.environment | environment
    return Job(config.load(box.root, given), given, Ui({}), "prepare")


@pytest.mark.parametrize("other", ["target = {}", "prefix = {}\nroot = {}", "user = true"])
def test_packages_lie_in_their_environment_whatever_place_the_users_pip_names(box: Box, tmp_path: Path, other: str) -> None:
    elsewhere, shop, settings = tmp_path / "elsewhere", tmp_path / "shop", tmp_path / "pip.conf"
    box.write("requirements/host.lock", wheel(tmp_path / "wheels"))
    settings.write_text(f"[global]\nno-index = true\nfind-links = {tmp_path}/wheels\n[install]\n{other.format(elsewhere, elsewhere)}\n")
    made = Environment("host", job_of(box, PIP_CONFIG_FILE=str(settings)))
    for action in made.actions(shop):
        action.run()
    assert made.is_ready()
    assert (made.packages / "something.py").exists()
    assert not elsewhere.exists()


def test_a_package_that_is_nowhere_is_named_though_pip_ends_with_other_words(box: Box, tmp_path: Path) -> None:
    said = ["Looking", "ERROR: No matching distribution found for torch==2.13.0+cpu", "ERROR: ResolutionImpossible", "note: read a page"]
    command = job_of(box).command("E_IMAGE", "sh", "-c", 'printf "%s\\n" "$@"; exit 1', "sh", *said)
    with pytest.raises(Failure) as told:
        command.run()
    assert told.value.found.endswith(f"ended with status 1: {'; '.join(said[1:])}")
