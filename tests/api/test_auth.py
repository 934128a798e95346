"""Who needs a key: every route walked by real peers of this machine and of another address, files that change, names that lie."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from fixtures.fronts import Front, end_front, rounds, serving, start_front

OPEN = {"/", "/health"}
CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hi"}]}
GOOD = {"authorization": "Bearer secret-one"}
Serve = Callable[..., Front]


def own_address() -> str:
    """An address of this machine that is not loopback; who connects to it comes from it."""
    for addresses in psutil.net_if_addrs().values():
        for one in addresses:
            if one.family.name == "AF_INET" and not one.address.startswith("127."):
                return one.address
    pytest.skip("needs an address that is not loopback")


def from_outside(front: Front) -> httpx.Client:
    return httpx.Client(base_url=f"http://{own_address()}:{front.port}", timeout=30)


def key_file(folder: Path, text: str = "# ours\nteam: secret-one\nsecret-two\n") -> Path:
    path = folder / "keys"
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def auto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder = tmp_path_factory.mktemp("auto")
    with serving(start_front(folder, {"rounds": rounds("x")}, "--host", "0.0.0.0", "--api-key-file", str(key_file(folder)))) as front:
        yield front


def walk(front: Front, client: httpx.Client) -> dict[tuple[str, str], int]:
    """Status of every route of the document and the hidden ones."""
    paths: dict[str, Any] = front.http.get("/openapi.json", headers=GOOD).json()["paths"]
    assert len(paths) > 10
    hidden = {"/openapi.json": ["get"], "/v1/metrics": ["get"]}
    found = {}
    for path, methods in {**paths, **hidden}.items():
        for method in methods:
            found[method, path] = client.request(
                method.upper(), path.replace("{name}", "x"), json={} if method == "post" else None
            ).status_code
    return found


def test_without_a_key_another_address_gets_no_route_but_health(auto: Front) -> None:
    with from_outside(auto) as client:
        statuses = walk(auto, client)
        assert {path for (_, path), status in statuses.items() if status != 401} <= OPEN
        assert client.get("/health").json().keys() == {"status"}
        assert "streams" in client.get("/health", headers={"x-api-key": "secret-two"}).json()
        assert client.get("/v1/health").json().keys() == {"status"}
        for path in ("/slots", "/get_server_info", "/server_info", "/v1/chat/completions/", "/health/", "//health", "/Health"):
            # As it stands: of a path that begins with two slashes the client would make a host.
            url = client.base_url.copy_with(raw_path=path.encode())
            assert [client.get(url, headers=headers).status_code for headers in ({}, GOOD)] == [404, 404], path
        refused = client.post(CHAT, json=BODY)
        assert (refused.headers["www-authenticate"], refused.json()["error"]["code"]) == ("Bearer", "invalid_api_key")
        assert client.post(CHAT, json=BODY, headers=GOOD).status_code == 200
    assert "secret" not in auto.log.read_text()


def test_a_program_of_this_machine_needs_none_and_a_wrong_one_does_not_hurt(auto: Front) -> None:
    assert 401 not in walk(auto, auto.http).values()
    assert auto.http.post(CHAT, json=BODY).status_code == 200
    assert auto.http.post(CHAT, json=BODY, headers={"authorization": "Bearer whatever"}).status_code == 200
    assert "streams" in auto.http.get("/health").json()


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer wrong"},
        {"authorization": "secret-one"},
        {"authorization": "Basic secret-one"},
        {"authorization": "Bearer"},
        {"authorization": "Bearer secret-one,"},
        {"authorization": "Bearer SECRET-ONE"},
        {"x-api-key": ""},
        {"x-api-key": "secret-"},
        {"x-api-key": "team: secret-one"},
        [(b"authorization", b"Bearer \xff\xfe")],
        [(b"x-api-key", "secret-öne".encode())],
        # What the client says about itself or about the address it wants never lets it in.
        {"x-forwarded-for": "127.0.0.1"},
        {"forwarded": "for=127.0.0.1"},
        {"x-real-ip": "::1"},
        {"host": "localhost"},
        {"host": "x/health?"},
        {"host": "x/health#"},
        {"origin": "http://localhost"},
    ],
)
def test_what_is_no_key_stays_outside(auto: Front, headers: Any) -> None:
    with from_outside(auto) as client:
        assert client.get("/v1/models", headers=headers).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [{"authorization": "bearer  secret-one"}, {"x-api-key": "secret-two"}, {"authorization": "Bearer wrong", "x-api-key": "secret-one"}],
)
def test_a_key_is_good_in_either_header(auto: Front, headers: dict[str, str]) -> None:
    with from_outside(auto) as client:
        assert client.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        # Somebody may stand behind a proxy of this machine, and nobody named it.
        ({"x-forwarded-for": "127.0.0.1"}, 401),
        ({"x-forwarded-for": "203.0.113.9"}, 401),
        ({"forwarded": "for=203.0.113.9"}, 401),
        ({"via": "1.1 box"}, 401),
        ({"x-real-ip": "203.0.113.9"}, 401),
        # A page of another site in a browser of this machine, or a name of its own that points here.
        ({"origin": "https://example.com"}, 401),
        ({"origin": "null"}, 401),
        ({"host": "example.com"}, 401),
        ({"host": "[bad"}, 401),
        ({"origin": "http://localhost:3000"}, 200),
        ({"origin": "http://127.0.0.1:3000"}, 200),
        ({"origin": "http://intranet"}, 401),
        ({"host": "localhost."}, 200),
        ({"host": "thisbox:8022"}, 200),
        ({"host": "192.0.2.7:8022"}, 200),
    ],
)
def test_a_local_peer_that_may_speak_for_others_needs_a_key(auto: Front, headers: dict[str, str], status: int) -> None:
    assert auto.http.get("/v1/models", headers=headers).status_code == status
    assert auto.http.get("/v1/models", headers=headers | GOOD).status_code == 200


@pytest.mark.parametrize(
    ("told", "status"),
    [
        ("127.0.0.1", 200),
        ("::1", 200),
        ("::ffff:127.0.0.1", 200),
        ("203.0.113.9", 401),
        ("127.0.0.1, 203.0.113.9", 401),
        ("203.0.113.9, 127.0.0.1", 200),
        ("127.0.0.1, 10.9.0.1", 200),
        ("203.0.113.9, 10.9.0.1", 401),
        ("127.0.0.1, unknown", 401),
        ("", 401),
        (None, 401),
    ],
)
def test_a_named_proxy_is_believed_as_far_as_it_saw(proxied: Front, told: str | None, status: int) -> None:
    with from_outside(proxied) as client:
        assert client.get("/v1/models", headers={} if told is None else {"x-forwarded-for": told}).status_code == status


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder = tmp_path_factory.mktemp("proxied")
    flags = ("--api-key-file", str(key_file(folder)), "--trusted-proxy", own_address(), "--trusted-proxy", "10.9.0.0/16")
    front = start_front(folder, {"rounds": rounds("x")}, "--host", "0.0.0.0", *flags)
    front.wait_for("/health", 200)
    yield front
    end_front(front)


def test_with_key_everyone_needs_one_and_with_open_nobody(serve: Serve, tmp_path: Path) -> None:
    closed = serve({"rounds": rounds("x")}, "--auth", "key", "--api-key-file", str(key_file(tmp_path)), ready=False)
    closed.wait_for("/health", 200)
    assert {path for (_, path), status in walk(closed, closed.http).items() if status != 401} <= OPEN
    opened = serve({"rounds": rounds("x")}, "--auth", "open", "--host", "0.0.0.0", "--api-key-file", str(tmp_path / "keys"))
    with from_outside(opened) as client:
        assert client.post(CHAT, json=BODY).status_code == 200
        assert "streams" in client.get("/health").json()
    bare = serve({"rounds": rounds("x")}, "--host", "0.0.0.0")
    with from_outside(bare) as client:
        assert client.get("/v1/models").status_code == 401
        assert client.get("/v1/models", headers=GOOD).status_code == 401


def test_a_changed_key_file_counts_within_seconds_and_a_broken_one_closes(serve: Serve, tmp_path: Path) -> None:
    keys = key_file(tmp_path)
    front = serve({"rounds": rounds("x")}, "--auth", "key", "--api-key-file", str(keys), ready=False)
    front.wait_for("/health", 200)

    def admitted(key: str, wanted: bool) -> None:
        until = time.monotonic() + 5
        while (front.http.get("/v1/models", headers={"x-api-key": key}).status_code == 200) != wanted:
            assert time.monotonic() < until, key
            time.sleep(0.05)

    admitted("secret-one", True)
    key_file(tmp_path, "team: secret-three\n")
    admitted("secret-one", False)
    admitted("secret-three", True)
    key_file(tmp_path, "")
    admitted("secret-three", False)
    keys.unlink()
    time.sleep(1.1)
    admitted("secret-three", False)
    other = tmp_path / "other"
    other.write_text("secret-four\n")
    other.rename(keys)
    admitted("secret-four", True)
    log = front.log.read_text()
    assert "until then no key is good" in log
    assert "secret-" not in log


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# nothing\n", "holds no key"),
        ("", "holds no key"),
        ("a: x\na: y\n", "line 2"),
        ("a: \n", "line 1"),
        (": x\n", "line 1"),
    ],
)
def test_a_key_file_that_says_nothing_clear_is_refused(serve: Serve, tmp_path: Path, text: str, words: str) -> None:
    front = serve({"rounds": rounds("x")}, "--api-key-file", str(key_file(tmp_path, text)), ready=False)
    assert front.process.wait(timeout=20) != 0
    assert words in front.log.read_text()


def test_a_key_file_others_can_read_is_warned_of(serve: Serve, tmp_path: Path) -> None:
    keys = key_file(tmp_path)
    keys.chmod(0o644)
    front = serve({"rounds": rounds("x")}, "--api-key-file", str(keys))
    assert "needed: chmod 600" in front.log.read_text()


def test_a_preflight_is_answered_and_allows_nothing(auto: Front) -> None:
    asked = {"origin": "https://example.com", "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    with from_outside(auto) as client:
        for path in (CHAT, "/v1/models", "/health"):
            reply = client.options(path, headers=asked)
            assert reply.status_code == 204
            assert not any(name.startswith("access-control") for name in reply.headers)
        assert client.options("/nothing", headers=asked).status_code == 404


def test_pages_of_named_origins_may_ask_with_a_key_and_read_refusals_and_streams(serve: Serve, tmp_path: Path) -> None:
    page, other = "https://chat.example", "https://evil.example"
    front = serve({"rounds": rounds("x")}, "--api-key-file", str(key_file(tmp_path)), "--cors-origin", page)
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,x-stainless-os"}
    allowed = front.http.options(CHAT, headers=asked | {"origin": page})
    assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, page)
    assert "x-stainless-os" in allowed.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in allowed.headers
    assert "access-control-allow-origin" not in front.http.options(CHAT, headers=asked | {"origin": other}).headers
    for sent, keyed, status in ((BODY, GOOD, 200), (BODY | {"stream": True}, GOOD, 200), ({}, GOOD, 400), (BODY, {}, 401)):
        for origin in (page, other):
            reply = front.http.post(CHAT, json=sent, headers=keyed | {"origin": origin})
            assert reply.status_code == status
            assert reply.headers.get("access-control-allow-origin") == (page if origin == page else None)
    assert "x-request-id" in reply.headers
