"""Each check answers one question: the right code, what was found, what was needed."""

from pathlib import Path

import pytest

from recipe.adapters.kernel import Filesystem
from recipe.checks import auth, dependencies, disk, gpu, platform, port, venv
from recipe.checks.disk import GIB, Want
from recipe.checks.gpu import Gpus
from recipe.checks.platform import Platform
from recipe.checks.port import Listen, Port
from recipe.checks.venv import Venv
from recipe.codes import CODES


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        (Platform("Linux", "x86_64"), "I_PLATFORM"),
        (Platform("Linux", "aarch64"), "E_PLATFORM"),
        (Platform("Darwin", "x86_64"), "E_PLATFORM"),
    ],
)
def test_the_platform_is_linux_on_a_machine_named(facts: Platform, code: str) -> None:
    finding = platform.check(facts, ("x86_64",))
    assert finding.code == code
    assert facts.system in finding.found


def test_missing_tools_are_named_and_those_present_are_not() -> None:
    finding = dependencies.check({"bash": True, "git": False}, ("bash", "git", "docker"))
    assert (finding.code, finding.found) == ("E_DEPENDENCY", "not on PATH: git, docker")
    assert dependencies.check({"bash": True}, ("bash",)).code == "I_DEPENDENCY"


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        (Venv("3.11", has_ensurepip=True, can_install=False), "I_DEPENDENCY"),
        (Venv("3.11", has_ensurepip=False, can_install=True), "I_DEPENDENCY"),
        (Venv("3.11", has_ensurepip=False, can_install=False), "E_VENV"),
    ],
)
def test_environments_need_ensurepip_or_the_right_to_install_it(facts: Venv, code: str) -> None:
    assert venv.check(facts).code == code


def test_a_python_without_listed_packages_is_refused_before_anything_is_fetched() -> None:
    finding = venv.check(Venv("3.12", has_ensurepip=True, can_install=False), "3.11")
    assert (finding.code, finding.found) == ("E_PYTHON", "Python 3.12")
    assert "PYTHON=python3.11 ./start.sh" in finding.remedy
    assert venv.check(Venv("3.11", has_ensurepip=True, can_install=False), "3.11").code == "I_DEPENDENCY"


def test_the_remedy_without_gpus_names_the_embedded_profile() -> None:
    assert gpu.check(Gpus((), "no GPU driver"), ("0", "1")).code == "E_GPU"
    assert "PROFILE=embedded" in CODES["E_GPU"].remedy
    assert gpu.check(Gpus(()), ()).code == "I_GPU"


def test_wants_on_one_filesystem_add_up() -> None:
    facts = {"/a": Filesystem(1, 15 * GIB), "/b": Filesystem(1, 15 * GIB), "/c": Filesystem(2, 15 * GIB)}
    fits = (Want("engine", "/a", 10), Want("drafter", "/c", 10))
    assert disk.check(facts, fits).code == "I_DISK"
    finding = disk.check(facts, (*fits, Want("checkpoint", "/b", 10)))
    assert (finding.code, finding.found) == ("E_DISK", "15.0 GiB free")
    assert finding.needed == "20 GiB for engine, checkpoint below /a"
    assert disk.check({}, ()).code == "I_DISK"


@pytest.mark.parametrize(
    ("facts", "need", "code", "found"),
    [
        (Port(can_bind=True), Listen("127.0.0.1", 8022), "I_PORT", "is free"),
        (Port(can_bind=False, owners=("nginx (process 7 of web)",)), Listen("127.0.0.1", 8022), "E_PORT", "nginx (process 7 of web)"),
        (Port(can_bind=False), Listen("127.0.0.1", 8022), "E_PORT", "another user"),
        (Port(can_bind=False), Listen("127.0.0.1", 80), "E_PORT", "cannot be bound"),
        (Port(can_bind=False, owners=("python3 (process 7 of me)",)), Listen("127.0.0.1", 8022, is_ours=True), "I_PORT", "replaced"),
        (Port(can_bind=False, problem="Name or service not known"), Listen("nowhere", 8022, is_ours=True), "E_PORT", "Name or service"),
    ],
)
def test_the_port_is_free_or_its_owner_is_named(facts: Port, need: Listen, code: str, found: str) -> None:
    finding = port.check(facts, need)
    assert finding.code == code
    assert found in finding.found


@pytest.mark.parametrize(
    ("host", "mode", "code"),
    [
        ("0.0.0.0", "open", "W_OPEN_BIND"),
        ("::", "open", "W_OPEN_BIND"),
        ("box.example", "open", "W_OPEN_BIND"),
        ("0.0.0.0", "auto", "I_AUTH"),
        ("0.0.0.0", "key", "I_AUTH"),
        ("127.0.0.1", "open", "I_AUTH"),
        ("::1", "open", "I_AUTH"),
        ("localhost", "open", "I_AUTH"),
    ],
)
def test_an_open_address_without_a_key_is_a_warning(host: str, mode: str, code: str) -> None:
    (found,) = auth.check(auth.Auth(mode, host, Path("/key"), has_file=True))
    assert found.code == code


def test_a_key_file_without_use_is_an_error_and_one_that_others_read_a_warning() -> None:
    told = auth.Auth("auto", "0.0.0.0", Path("/key"), has_file=True, problem="there is no key in it", open_files=(Path("/key"),))
    assert [found.code for found in auth.check(told)] == ["W_SECRET_FILE", "E_KEY"]
