"""Each check answers one question: the right code, what was found, what was needed."""

import pytest

from recipe.adapters.kernel import Filesystem
from recipe.checks import bind, dependencies, disk, gpu, platform, port, venv
from recipe.checks.disk import GIB, Want
from recipe.checks.gpu import Gpu, Gpus
from recipe.checks.platform import Platform
from recipe.checks.port import Listen, Port
from recipe.checks.venv import Venv
from recipe.codes import CODES

PAIR = Gpus((Gpu(0, "RTX PRO 6000", 97887), Gpu(1, "RTX PRO 6000", 97887)))


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


@pytest.mark.parametrize(
    ("facts", "need", "code", "found"),
    [
        (PAIR, (0, 1), "I_GPU", "1 RTX PRO 6000 97887 MiB"),
        (PAIR, (0, 2), "E_GPU", "no GPU 2"),
        (Gpus(()), (0, 1), "E_GPU", "no GPU; no GPU 0, 1"),
        (Gpus((), "no GPU driver"), (0, 1), "E_GPU", "no GPU driver"),
        (Gpus((), "no GPU driver"), (), "I_GPU", "none needed"),
    ],
)
def test_the_gpus_asked_for_are_there(facts: Gpus, need: tuple[int, ...], code: str, found: str) -> None:
    finding = gpu.check(facts, need)
    assert finding.code == code
    assert found in finding.found


def test_the_remedy_without_gpus_names_the_embedded_profile() -> None:
    assert "PROFILE=embedded" in CODES["E_GPU"].remedy


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
        (Port(can_bind=False, owners=((7, "nginx"),)), Listen("127.0.0.1", 8022), "E_PORT", "nginx (process 7)"),
        (Port(can_bind=False), Listen("127.0.0.1", 8022), "E_PORT", "another user"),
        (Port(can_bind=False), Listen("127.0.0.1", 80), "E_PORT", "cannot be bound"),
        (Port(can_bind=False, owners=((7, "python3"),)), Listen("127.0.0.1", 8022, is_ours=True), "I_PORT", "replaced"),
        (Port(can_bind=False, problem="Name or service not known"), Listen("nowhere", 8022, is_ours=True), "E_PORT", "Name or service"),
    ],
)
def test_the_port_is_free_or_its_owner_is_named(facts: Port, need: Listen, code: str, found: str) -> None:
    finding = port.check(facts, need)
    assert finding.code == code
    assert found in finding.found


@pytest.mark.parametrize(
    ("host", "has_key", "code"),
    [
        ("0.0.0.0", False, "W_OPEN_BIND"),
        ("::", False, "W_OPEN_BIND"),
        ("box.example", False, "W_OPEN_BIND"),
        ("0.0.0.0", True, "I_PORT"),
        ("127.0.0.1", False, "I_PORT"),
        ("::1", False, "I_PORT"),
        ("localhost", False, "I_PORT"),
    ],
)
def test_an_open_address_without_a_key_is_a_warning(host: str, has_key: bool, code: str) -> None:
    assert bind.check(bind.Bind(host, has_key)).code == code
