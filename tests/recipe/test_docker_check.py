"""Why no Docker engine answers: each cause is made for real, and told with its code and its own way out."""

from __future__ import annotations

import grp
import json
import os
import pwd
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fixtures.clone_box import ROOT
from recipe.adapters import containers
from recipe.adapters.containers import DockerFault
from recipe.checks import Finding, docker

STRANGER = "nobody"
# Asks as another user, who keeps only the groups given. Imports come first: the interpreter's own files may be closed to that user.
ASK = """
import json, os, sys
from recipe.adapters import containers
from recipe.checks import docker
groups, user, endpoint = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
os.setgroups(groups)
os.setgid(65534)
os.setuid(user)
print(json.dumps(vars(docker.check(containers.daemon({"DOCKER_HOST": endpoint})))))
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A socket's place in a folder that other users reach, as they do none of pytest's own."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder, "docker.sock")


@pytest.fixture
def listening(place: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(place))
        made.listen()
        yield made


def ask(place: Path) -> Finding:
    return docker.check(containers.daemon({"DOCKER_HOST": f"unix://{place}"}))


def ask_as_stranger(place: Path) -> Finding:
    user = pwd.getpwnam(STRANGER).pw_uid
    words = [sys.executable, "-c", ASK, "[]", str(user), f"unix://{place}"]
    done = subprocess.run(words, cwd=ROOT / "scripts", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Finding(**json.loads(done.stdout))


def test_no_socket_means_no_daemon(place: Path) -> None:
    found = ask(place)
    assert found.code == "E_DOCKER"
    assert "No such file" in found.found
    assert "systemctl start docker" in found.remedy


def test_a_socket_nobody_listens_on_means_a_daemon_that_died(place: Path, listening: socket.socket) -> None:
    listening.close()
    found = ask(place)
    assert found.code == "E_DOCKER"
    assert "refused" in found.found
    assert "systemctl start docker" in found.remedy


def test_a_daemon_that_hangs_is_not_waited_for_long(place: Path, listening: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "ANSWER_S", 0.2)
    found = ask(place)
    assert found.code == "E_DOCKER"
    assert "timed out" in found.found


def test_something_else_on_the_socket_is_no_engine(place: Path, listening: socket.socket) -> None:
    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(1024)
            connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}")

    threading.Thread(target=serve, daemon=True).start()
    assert ask(place).code == "E_DOCKER"


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@needs_root
def test_a_socket_of_a_group_the_user_is_not_in_names_the_group(place: Path, listening: socket.socket) -> None:
    group = grp.getgrnam("daemon")
    os.chown(place, 0, group.gr_gid)
    place.chmod(0o660)
    found = ask_as_stranger(place)
    assert found.code == "E_DOCKER_GROUP"
    assert f"{STRANGER} is not in group {group.gr_name}" in found.found
    assert f"usermod -aG {group.gr_name} {STRANGER}" in found.remedy


@needs_root
def test_a_socket_closed_to_its_group_is_a_matter_of_its_mode(place: Path, listening: socket.socket) -> None:
    place.chmod(0o600)
    found = ask_as_stranger(place)
    assert found.code == "E_DOCKER"
    assert "srw-------" in found.found


@needs_root
def test_a_socket_in_a_closed_folder_is_told_as_such(place: Path, listening: socket.socket) -> None:
    place.parent.chmod(0o700)
    found = ask_as_stranger(place)
    assert found.code == "E_DOCKER"
    assert "folder above the socket" in found.found


def test_a_member_whose_session_is_older_logs_in_again() -> None:
    found = docker.check(docker.Daemon("unix:///s", "permission denied", user="me", group="docker", is_member=True))
    assert found.code == "E_DOCKER_GROUP"
    assert "newgrp docker" in found.remedy


def test_the_context_in_use_names_the_engine(tmp_path: Path) -> None:
    meta = tmp_path / ".docker/contexts/meta/12b961af5feb3e9d39f93b2cefb9a1a944f18d02cca0cac2f04f5a982240605f/meta.json"
    meta.parent.mkdir(parents=True)
    meta.write_text(json.dumps({"Endpoints": {"docker": {"Host": "unix:///run/user/1000/docker.sock"}}}))
    (tmp_path / ".docker/config.json").write_text(json.dumps({"currentContext": "rootless"}))
    told = {"HOME": str(tmp_path)}
    assert containers.endpoint(told) == "unix:///run/user/1000/docker.sock"
    assert containers.is_rootless(told)
    assert containers.endpoint(told | {"DOCKER_HOST": "unix:///other"}) == "unix:///other"
    assert containers.endpoint({"HOME": "/nowhere"}) == containers.DEFAULT


@pytest.mark.parametrize(
    "ask_the_engine",
    [
        lambda: containers.image_labels("an-image"),
        lambda: containers.fetch("an-image", print),
        lambda: containers.ask("an-image", "true"),
        lambda: containers.drop_images("a-label", (), "another"),
        lambda: containers.start("an-image", (), {"security_opt": []}),
        lambda: containers.look("a-container"),
        lambda: containers.stop("a-container", 1),
        lambda: containers.remove("a-container", Path("/dev/null")),
    ],
)
def test_before_the_sdk_is_installed_each_question_says_so(monkeypatch: pytest.MonkeyPatch, ask_the_engine: Callable[[], object]) -> None:
    for name in ("docker", "docker.errors"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DockerFault, match="the Docker SDK is not installed"):
        ask_the_engine()
