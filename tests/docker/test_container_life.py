"""The whole embedded pipeline in a real Docker engine: build, LIVE, restart, a broken build, rollback, stop."""

import contextlib
import json
import socket
import subprocess
import tarfile
from pathlib import Path

import requests

from fixtures.clone_box import takes_less_than
from fixtures.docker_installation import Installation

KEY = "canary-of-the-key"


def names(installation: Installation) -> set[str]:
    """Tags of the engine's images."""
    return set(installation.daemon.docker("images", "--format", "{{.Repository}}:{{.Tag}}", "glm-5.3-flash-lockstep").split())


def content(archive: Path) -> bytes:
    """All files of an archive, one after the other."""
    with tarfile.open(archive) as tar:
        return b"".join(file.read() for file in map(tar.extractfile, tar.getmembers()) if file is not None)


def test_the_first_start_built_the_image_and_ended_live(live: Installation) -> None:
    lines = live.output.splitlines()
    assert [line[:5] for line in lines if line.startswith("[")] == [f"[{n}/6]" for n in range(1, 7)]
    assert f"GLM-5.3-Flash-EXL3 is now LIVE! on port {live.port}" in lines
    labels = json.loads(live.daemon.docker("inspect", "--format", "{{json .Config.Labels}}", f"glm-5.3-flash-lockstep:{live.build}"))
    assert labels["recipe.build"] == live.build
    told = live.inspect()
    assert told["Config"]["Image"] == f"glm-5.3-flash-lockstep:{live.build}"
    assert told["State"]["Running"]


def test_a_second_start_builds_nothing_and_reattaches(live: Installation) -> None:
    before = live.inspect()["Id"]
    with takes_less_than(6):
        output = live.must()
    assert "[I_RUNNING]" in output
    assert live.inspect()["Id"] == before


def test_the_answers_come_from_the_checkpoint_in_the_container(live: Installation) -> None:
    assert live.ask() == 200
    smoke = json.loads((Path(live.record["folder"]) / "smoke.json").read_text())
    assert smoke["exact word"]["status"] == 200
    assert "lockstep.server: ready" in (Path(live.record["folder"]) / "server.log").read_text()
    assert "live" in live.must("status")


def test_a_restart_swaps_the_container_and_archives_the_old_one(live: Installation) -> None:
    old = live.inspect()["Id"], Path(live.record["folder"]).name
    live.must("restart", CONTEXT="4096")
    assert live.inspect()["Id"] != old[0]
    assert "--context" in live.inspect()["Args"]
    assert live.archives()[-1].name == f"{old[1]}.tar.gz"
    assert "CONTEXT: the server runs with 4096" in live.must("status")


def test_prompt_states_outlive_the_container(live: Installation) -> None:
    told, whole = [], 0
    for _ in range(2):
        live.must("restart", SPILL_GIB="1")
        body = {"messages": [{"role": "user", "content": "count the rivers " * 40}], "max_tokens": 8}
        reply = requests.post(f"http://127.0.0.1:{live.port}/v1/chat/completions", json=body, timeout=20).json()
        whole = reply["usage"]["prompt_tokens"]
        told.append((reply["lockstep"]["token_sha"], reply["usage"]["prompt_tokens_details"]["cached_tokens"]))
    assert told == [(told[0][0], 0), (told[0][0], whole)]
    (mount,) = [mount for mount in live.inspect()["Mounts"] if mount["Destination"] == "/spill"]
    assert mount["RW"]
    assert Path(mount["Source"]).stat().st_mode & 0o777 == 0o700


def test_a_broken_build_gives_way_to_the_server_of_before(live: Installation) -> None:
    live.change_engine("loop.py", 'raise RuntimeError("deliberately broken")')
    done = live.run("restart")
    assert done.returncode == 13, done.stdout + done.stderr
    assert "[W_ROLLBACK]" in done.stderr
    assert live.record["launch"]["build"] == live.build
    assert live.ask() == 200
    assert b"deliberately broken" in content(live.archives()[-1])


def test_rollback_serves_the_build_of_before_when_the_present_one_does_not_start(live: Installation) -> None:
    live.change_engine("loop.py", 'raise RuntimeError("deliberately broken")')
    live.must("stop")
    assert live.run().returncode == 13
    assert live.run("status").returncode == 3
    assert "LIVE! on port" in live.must("rollback")
    assert live.record["launch"]["build"] == live.build
    assert live.ask() == 200


def test_rollback_returns_to_the_previous_image_and_later_builds_push_the_oldest_out(live: Installation) -> None:
    live.change_engine("core/errors.py", "# second")
    live.must("restart")
    second = live.record["launch"]["build"]
    assert second != live.build
    live.must("rollback")
    assert live.inspect()["Config"]["Image"] == f"glm-5.3-flash-lockstep:{live.build}"
    assert "[I_RUNNING]" in live.must("rollback")
    live.must("restart")
    live.change_engine("core/errors.py", "# third")
    output = live.must("restart")
    assert f"[I_CLEANED] glm-5.3-flash-lockstep:{live.build}" in output
    assert {f"glm-5.3-flash-lockstep:{build}" for build in (second, live.record["launch"]["build"])} <= names(live)


def test_a_key_is_a_private_file_inside_and_shows_nowhere_outside(live: Installation) -> None:
    file = live.home / "key"
    file.write_text(KEY + "\n")
    file.chmod(0o600)
    live.must("restart", API_KEY_FILE=str(file), AUTH="key")
    assert (live.ask(), live.ask(KEY)) == (401, 200)
    inside = live.inside("import os; facts = os.stat('/key'); print(oct(facts.st_mode), facts.st_uid, open('/key').read())")
    assert inside.split() == ["0o100600", "65534", KEY]
    lent = live.root / ".state/lent-key"
    assert [mount["RW"] for mount in live.inspect()["Mounts"] if mount["Source"] == str(lent)] == [False]
    assert KEY not in json.dumps(live.inspect())
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        # Processes of others end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            assert KEY.encode() not in place.read_bytes()
    live.must("stop", API_KEY_FILE=str(file))
    assert not lent.exists()
    assert KEY.encode() not in content(live.archives()[-1])


def test_stop_ends_the_container_and_packs_the_logs(live: Installation) -> None:
    run = Path(live.record["folder"]).name
    assert "[I_STOPPED]" in live.must("stop")
    assert live.daemon.docker("ps", "--all", "--quiet", "--filter", f"name={live.name}") == ""
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", live.port)) != 0
    archive = live.archives()[-1]
    assert (archive.name, archive.stat().st_mode & 0o777) == (f"{run}.tar.gz", 0o600)
    with tarfile.open(archive) as tar:
        packed = {member.name.rpartition("/")[2]: member for member in tar.getmembers()}
        assert {"server.log", "docker.log", "smoke.json", "settings.json"} <= set(packed)
        output = tar.extractfile(packed["docker.log"])
        assert output is not None
        assert b"lockstep.server: draining" in output.read()


def test_a_terminated_container_drains_and_ends_with_status_0(live: Installation) -> None:
    live.daemon.docker("kill", "--signal", "TERM", live.name)
    assert live.daemon.docker("wait", live.name) == "0"
    assert "[I_RECOVER]" in live.must()


def test_the_container_ends_with_the_status_of_an_engine_that_does_not_load(live: Installation) -> None:
    words = ["docker", "run", "--rm", "--network", "none", "--tmpfs", "/logs:mode=777", f"glm-5.3-flash-lockstep:{live.build}"]
    command = ["serve", "--model", "/nowhere", "--port", "8999"]
    done = subprocess.run([*words, *command], env=live.daemon.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "/nowhere" in done.stdout


def test_a_container_that_died_is_seen_and_cleared_away(live: Installation) -> None:
    live.daemon.docker("kill", live.name)
    assert "dead" in live.run("status").stdout
    assert "[I_RECOVER]" in live.must()
    assert live.ask() == 200


def test_files_the_container_may_not_read_are_named_with_the_way_out(live: Installation) -> None:
    live.must("stop")
    (live.root / "embedded/config.json").chmod(0o600)
    try:
        done = live.run()
    finally:
        (live.root / "embedded/config.json").chmod(0o644)
    assert done.returncode == 13
    assert "may not read" in done.stderr
    assert "chmod -R a+rX" in done.stderr


def test_a_name_taken_by_a_foreign_container_is_told(live: Installation) -> None:
    live.must("stop")
    live.daemon.docker("create", "--name", live.name, live.base, "true")
    try:
        done = live.run()
    finally:
        # It is still there, or this fails.
        live.daemon.docker("rm", live.name)
    assert done.returncode == 2
    assert "CONTAINER_NAME is taken" in done.stderr
