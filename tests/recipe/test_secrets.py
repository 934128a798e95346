"""Keys and tokens: asked for as told, and found nowhere but where their owner put them."""

import os
import socket
import subprocess
import tarfile
from pathlib import Path

import pytest

from fixtures.clone_box import ROOT, Box, processes_marked, processes_with
from recipe import config, secrets
from recipe.adapters import kernel

# Of this run only: processes of the whole machine are looked at, and these tests may run twice on it.
TOKEN, KEY = (f"canary-{what}-{os.urandom(4).hex()}" for what in ("token", "key"))


def hold(box: Box, place: str) -> dict[str, str]:
    """Settings of a start whose secrets stand in the environment, in `.env`, or in files of their own."""
    key = box.home / "key-of-mine"
    key.write_text(f"me: {KEY}\n")
    key.chmod(0o600)
    if place == "environment":
        return {"HF_TOKEN": TOKEN, "API_KEY_FILE": str(key)}
    if place == "older name":
        return {"HUGGING_FACE_HUB_TOKEN": TOKEN, "API_KEY_FILE": str(key)}
    if place == ".env":
        box.write(".env", f"HF_TOKEN={TOKEN} # of the hub\nAPI_KEY_FILE={key}\n").chmod(0o600)
        return {}
    token = box.home / "token-of-mine"
    token.write_text(f"{TOKEN}\r\n")
    token.chmod(0o600)
    return {"HF_TOKEN_PATH": str(token), "API_KEY_FILE": str(key)}


def content(archive: Path) -> bytes:
    with tarfile.open(archive) as tar:
        return b"".join(file.read() for member in tar if (file := tar.extractfile(member)) is not None)


def holders(box: Box, archives: list[Path]) -> list[str]:
    """Files of the clone and the home, and archives, in which a secret stands."""
    found = [path for path in (*box.root.rglob("*"), *box.home.rglob("*")) if path.is_file() and path not in archives]
    told = {str(path): path.read_bytes() for path in found} | {str(path): content(path) for path in archives}
    return sorted(name for name, text in told.items() if TOKEN.encode() in text or KEY.encode() in text)


@pytest.mark.parametrize("place", ["environment", "older name", ".env", "files"])
def test_a_secret_is_in_no_output_log_argument_plan_record_archive_or_bundle(box: Box, place: str) -> None:
    given = hold(box, place)
    own = holders(box, [])
    told = []
    for words in (("start",), ("--json", "doctor"), ("config",), ("restart",)):
        done = box.run(*words, **given)
        assert done.returncode == 0, done.stderr
        told.append(done.stdout + done.stderr)
    told.append(box.run(**given, DRY_RUN="1", PROFILE="two-gpu", RUNTIME="docker").stdout)
    for pid in processes_marked(box.run_name):
        told.append(Path(f"/proc/{pid}/cmdline").read_text() + Path(f"/proc/{pid}/environ").read_text())
    assert holders(box, box.archives()) == own
    # An engine that prints what it was given is the worst case of a log.
    log = Path(box.record["folder"]) / "server.log"
    with log.open("a") as file:
        file.write(f"Authorization: Bearer {KEY}\nHF_TOKEN={TOKEN}\n")
    told.append(box.run("support-bundle", **given).stdout)
    told.append(box.stop(**given).stdout)
    assert [text for text in told if TOKEN in text or KEY in text] == []
    archives = sorted((box.root / "logs").glob("*.tar.gz"))
    assert len(archives) == 3
    assert holders(box, archives) == own
    assert sum(content(archive).count(secrets.REDACTED) for archive in archives) == 4


def test_a_token_is_read_from_its_file_unless_it_is_given_and_no_server_gets_it(box: Box) -> None:
    given = hold(box, "files")
    settings = config.load(box.root, box.environment | given)
    assert secrets.hub_token(settings) == TOKEN
    assert secrets.hub_token(config.load(box.root, box.environment | given | {"HF_TOKEN": "of-the-environment"})) == "of-the-environment"
    assert box.run(**given, HF_TOKEN=TOKEN).returncode == 0
    assert processes_marked(box.run_name) != []
    assert processes_with("HF_TOKEN", TOKEN) == []


def test_a_server_that_lets_anybody_in_does_not_go_live(box: Box) -> None:
    box.set_engine("open", open=True)
    done = box.run(AUTH="key")
    assert done.returncode == 15
    assert "[E_AUTH]" in done.stderr
    assert not box.is_listening()


@pytest.mark.skipif(not kernel.own_address(), reason="this machine has no address but loopback")
def test_with_auto_who_comes_by_the_network_needs_the_key(box: Box) -> None:
    done = box.run(HOST="0.0.0.0")
    assert done.returncode == 0, done.stderr
    box.stop()
    box.set_engine("open", open=True)
    refused = box.run(HOST="0.0.0.0")
    assert "[E_AUTH]" in refused.stderr
    assert kernel.own_address() in refused.stderr


@pytest.mark.parametrize("mode", ["auto", "key", "open"])
def test_status_and_verify_work_in_each_mode(box: Box, mode: str) -> None:
    box.run(AUTH=mode)
    assert box.run("status", AUTH=mode).returncode == 0
    done = box.run("verify", "quality", "--only", "exact_word", AUTH=mode)
    # The stub's one word is no right answer, but it is an answer.
    assert done.returncode == 1
    assert "found 'ready'" in done.stdout
    assert "E_API" not in done.stderr


def test_own_address_is_no_loopback_and_can_be_bound() -> None:
    found = kernel.own_address()
    if found:
        with socket.socket() as probe:
            probe.bind((found, 0))
    assert not found.startswith("127.")


def test_the_repository_holds_no_key_of_a_try() -> None:
    ignored = subprocess.run(
        ["git", "-C", str(ROOT), "check-ignore", ".state/api-key", ".env"], capture_output=True, text=True, check=False
    )
    assert ignored.stdout.split() == [".state/api-key", ".env"]
