"""Talks to the Docker Engine: through its SDK, and before that is installed through the engine's socket. Knows no setting."""

import contextlib
import functools
import grp
import hashlib
import http.client
import json
import os
import socket
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe.adapters import kernel
from recipe.checks.docker import Daemon
from recipe.container import RUN_LABEL

DEFAULT = "unix:///var/run/docker.sock"
ANSWER_S = 20
BUILD_S = 3600
STOP_SLACK_S = 30
SECCOMP = "seccomp="
PROBE = "/no-program-only-the-gpus-are-asked-for"


class DockerFault(Exception):
    """What the engine or its SDK said, on one line."""


def endpoint(environment: Mapping[str, str]) -> str:
    """Where the engine is: DOCKER_HOST, the context in use, or the usual socket."""
    if environment.get("DOCKER_HOST"):
        return environment["DOCKER_HOST"]
    folder = Path(environment.get("DOCKER_CONFIG") or Path(kernel.home(environment), ".docker"))
    try:
        name = environment.get("DOCKER_CONTEXT") or json.loads((folder / "config.json").read_bytes()).get("currentContext") or "default"
        place = folder / "contexts/meta" / hashlib.sha256(name.encode()).hexdigest() / "meta.json"
        return DEFAULT if name == "default" else json.loads(place.read_bytes())["Endpoints"]["docker"]["Host"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return DEFAULT


def is_rootless(environment: Mapping[str, str]) -> bool:
    """Whether the engine runs as its user: root inside its containers is that user outside."""
    return endpoint(environment).startswith("unix:///run/user/")


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=ANSWER_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def daemon(environment: Mapping[str, str]) -> Daemon:
    """What answers at the engine's place, or why nothing does. An engine on another machine is asked through the SDK only."""
    place = endpoint(environment)
    if not place.startswith("unix://"):
        return _far(place)
    path = place.removeprefix("unix://")
    try:
        status, body = _answer(path, "GET", "/info")
        told = json.loads(body)
        if status != 200:
            return Daemon(place, f"it answers {status}")
        return Daemon(place, version=str(told["ServerVersion"]), storage=str(told["DockerRootDir"]))
    except PermissionError:
        return _denied(place, Path(path))
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
        is_missing, is_deaf = isinstance(error, FileNotFoundError), isinstance(error, ConnectionRefusedError)
        return Daemon(place, str(error) or type(error).__name__, is_down=is_missing or is_deaf)


def _far(place: str) -> Daemon:
    try:
        with _engine() as engine:
            told = engine.info()
        return Daemon(place, version=str(told["ServerVersion"]), storage=str(told["DockerRootDir"]))
    except DockerFault as fault:
        is_unknown = isinstance(fault.__cause__, ImportError)
        return Daemon(place, str(fault), version="not asked before the SDK is installed" if is_unknown else "")


def holder(environment: Mapping[str, str], name: str, run: str) -> str:
    """A container that has this name and is not of `run`, in words; empty for none. An engine on another machine is not asked."""
    place = endpoint(environment)
    told = _call(place.removeprefix("unix://"), "GET", f"/containers/{name}/json") if place.startswith("unix://") else {}
    labels = told.get("Config", {}).get("Labels") or {}
    if "Id" not in told or labels.get(RUN_LABEL) == run:
        return ""
    whose = f"of {labels[RUN_LABEL]}" if RUN_LABEL in labels else f"of image {told['Config']['Image']}, not started by this program"
    return f"container {name} {whose} ({told['State']['Status']})"


def gpu_problem(environment: Mapping[str, str], ids: Sequence[str]) -> str:
    """Why the engine gives a container no GPU; empty where it does. Asked with an empty image made here."""
    place, name = endpoint(environment), f"glm-gpu-probe:{os.getpid()}"
    if not place.startswith("unix://"):
        return ""
    path = place.removeprefix("unix://")
    try:
        _call(path, "POST", f"/images/create?fromSrc=-&repo={name.replace(':', '&tag=')}", b"\0" * 1024, "application/x-tar")
        said = [_asked(path, name, {"DeviceIDs": list(ids), "Capabilities": [["gpu"]]})]
        if said[0]:
            said.append(_asked(path, name, by_cdi(ids)))
        _call(path, "DELETE", f"/images/{name}?force=1")
    except (OSError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__
    return "" if "" in said else "; ".join(dict.fromkeys(said))


def by_cdi(ids: Sequence[str]) -> dict[str, Any]:
    """The GPUs as hosts name them that know container devices (CDI) but no runtime of NVIDIA's."""
    return {"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={one}" for one in ids]}


def _asked(path: str, image: str, request: Mapping[str, Any]) -> str:
    """What is wrong with a container that gets the devices of `request`, or nothing."""
    told = {"Image": image, "Cmd": [PROBE], "HostConfig": {"DeviceRequests": [request], "NetworkMode": "none"}}
    said = made = _call(path, "POST", "/containers/create", json.dumps(told).encode())
    if "Id" in made:
        said = _call(path, "POST", f"/containers/{made['Id']}/start")
        _call(path, "DELETE", f"/containers/{made['Id']}?force=1")
    # The image holds no program: that this is what is missing shows that everything before it was given.
    message = str(said.get("message", ""))
    return "" if PROBE in message else " ".join(message.split())


def _call(path: str, verb: str, what: str, body: bytes | None = None, kind: str = "application/json") -> dict[str, Any]:
    """The last JSON object of the engine's answer, or none. Raises OSError or HTTPException."""
    lines = _answer(path, verb, what, body, kind)[1].splitlines()
    try:
        told = json.loads(lines[-1]) if lines else {}
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _answer(path: str, verb: str, what: str, body: bytes | None = None, kind: str = "application/json") -> tuple[int, bytes]:
    """Status and body. Raises OSError or HTTPException."""
    connection = _Connection(path)
    try:
        connection.request(verb, what, body=body, headers={"Content-Type": kind})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _denied(place: str, path: Path) -> Daemon:
    """The rights on the socket, and whether this user, or only this session, lacks its group."""
    user = kernel.user()
    try:
        facts = path.stat()
    except PermissionError:
        return Daemon(place, "a folder above the socket is closed to this user", user=user)
    if not facts.st_mode & stat.S_IWGRP:
        return Daemon(place, f"the socket's mode is {stat.filemode(facts.st_mode)}", user=user)
    try:
        group = grp.getgrgid(facts.st_gid)
    except KeyError:
        return Daemon(place, f"the socket belongs to group {facts.st_gid}, which has no name here", user=user)
    return Daemon(place, "permission denied", user=user, group=group.gr_name, is_member=user in group.gr_mem)


@functools.cache
def _client(timeout_s: int) -> Any:
    import docker

    return docker.DockerClient.from_env(environment=dict(os.environ) | {"DOCKER_HOST": endpoint(os.environ)}, timeout=timeout_s)


@contextlib.contextmanager
def _engine(timeout_s: int = ANSWER_S) -> Iterator[Any]:
    """The SDK's client. Whatever goes wrong comes out as DockerFault, also that the SDK is not installed yet."""
    try:
        from docker.errors import DockerException
        from requests import RequestException
    except ImportError as error:
        raise DockerFault(f"the Docker SDK is not installed (./start.sh prepare does it): {error}") from error
    try:
        yield _client(timeout_s)
    except (DockerException, RequestException) as error:
        raise DockerFault(" ".join(str(getattr(error, "explanation", None) or error).split())) from error


@contextlib.contextmanager
def _absent() -> Iterator[None]:
    """What is not there needs no further work."""
    from docker.errors import NotFound

    with contextlib.suppress(NotFound):
        yield


@dataclass(frozen=True)
class Seen:
    """A container that exists: `status` is its exit status once it ended."""

    labels: Mapping[str, str]
    is_running: bool
    status: int


def image_labels(reference: str) -> Mapping[str, str] | None:
    """None where there is no such image. Raises DockerFault."""
    with _engine() as engine, _absent():
        return engine.images.get(reference).labels
    return None


def fetch(reference: str, tell: Callable[[str], None]) -> None:
    """Pull an image that is named by its digest, unless it is there. Raises DockerFault."""
    if image_labels(reference) is None:
        with _engine(BUILD_S) as engine:
            _follow(engine.api.pull(reference, stream=True, decode=True), tell)


def ask(reference: str, *argv: str) -> str:
    """What a command in a throw-away container prints. Raises DockerFault."""
    with _engine() as engine:
        output = engine.containers.run(
            reference, argv[1:], entrypoint=argv[:1], network_mode="none", read_only=True, cap_drop=["ALL"], user="65534", remove=True
        )
        return output.decode("utf-8", "replace").strip()


def build(folder: Path, tag: str, arguments: Mapping[str, str], labels: Mapping[str, str], tell: Callable[[str], None]) -> None:
    """Build the image of a context folder, without a network. `tell` gets every line. Raises DockerFault."""
    with _engine(BUILD_S) as engine, folder.with_suffix(".tar").open("w+b") as context:
        from docker.utils.build import create_archive

        # Beside the context: a system's /tmp need not have room for some gigabytes of wheels.
        create_archive(str(folder), fileobj=context)
        options = {"buildargs": dict(arguments), "labels": dict(labels), "network_mode": "none", "rm": True, "forcerm": True}
        _follow(engine.api.build(fileobj=context, custom_context=True, tag=tag, decode=True, **options), tell)


def _follow(stream: Iterator[Mapping[str, Any]], tell: Callable[[str], None]) -> None:
    for told in stream:
        if "error" in told:
            raise DockerFault(" ".join(str(told["error"]).split()))
        text = told.get("stream") or " ".join(str(told[name]) for name in ("status", "id", "progress") if told.get(name))
        for line in text.splitlines():
            if line.strip():
                tell(line.strip())


def drop_images(label: str, keep: Collection[str], other: str) -> list[str]:
    """Remove images that have the label `other` and whose `label` has none of the values `keep`; one in use stays. Returns names."""
    removed = []
    with _engine(BUILD_S) as engine:
        from docker.errors import APIError

        for image in engine.images.list(filters={"label": [label, other]}):
            if image.labels[label] not in keep:
                with contextlib.suppress(APIError):
                    engine.images.remove(image.id)
                    removed.append(image.tags[0] if image.tags else image.short_id)
    return removed


def start(image: str, command: Sequence[str], options: Mapping[str, Any]) -> None:
    """Create a container and start it; one that cannot be started is removed. Raises DockerFault."""
    given = {**options, "security_opt": [_with_profile(word) for word in options["security_opt"]]}
    try:
        _start(image, command, given)
    except DockerFault as fault:
        if "device driver" not in str(fault) or "device_requests" not in given:
            raise
        _start(image, command, given | {"device_requests": [by_cdi(one["device_ids"]) for one in given["device_requests"]]})


def _start(image: str, command: Sequence[str], given: Mapping[str, Any]) -> None:
    with _engine() as engine:
        container = engine.containers.create(image, list(command), **given)
        try:
            container.start()
        except BaseException:
            container.remove(force=True)
            raise


def _with_profile(word: str) -> str:
    """The engine takes the profile itself, not the name of its file. Raises DockerFault."""
    if not word.startswith(SECCOMP):
        return word
    try:
        return SECCOMP + Path(word.removeprefix(SECCOMP)).read_text(encoding="utf-8")
    except OSError as error:
        raise DockerFault(f"{word.removeprefix(SECCOMP)}: {error.strerror}") from error


def look(name: str) -> Seen | None:
    """None where there is no such container. Raises DockerFault."""
    with _engine() as engine, _absent():
        found = engine.containers.get(name)
        return Seen(found.labels, found.attrs["State"]["Running"], found.attrs["State"]["ExitCode"])
    return None


def stop(name: str, grace_s: float) -> None:
    """Ask it to finish, end it after `grace_s` seconds. Raises DockerFault."""
    with _engine(int(grace_s) + STOP_SLACK_S) as engine, _absent():
        engine.containers.get(name).stop(timeout=int(grace_s))


def remove(name: str, log: Path) -> None:
    """Write its whole output with times to `log`, then remove it. Raises DockerFault, or OSError while it is still there."""
    with _engine() as engine, _absent():
        found = engine.containers.get(name)
        with log.open("wb") as file:
            for piece in found.logs(stream=True, timestamps=True):
                file.write(piece)
        found.remove(force=True)
