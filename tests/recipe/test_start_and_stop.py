"""The life of a server under start, restart and stop, with a stub in the engine's place."""

import json
import os
import signal
import socket
import tarfile
import time

import pytest

from fixtures.clone_box import Box, processes_marked, takes_less_than
from fixtures.ports import free_port
from fixtures.waiting import wait_until

LIVE = "GLM-5.3-Flash-EXL3 is now LIVE! on port {}"


def kill_server(box: Box) -> None:
    os.kill(box.record["identity"]["pid"], signal.SIGKILL)


def engine_of(box: Box) -> int:
    return next(pid for pid in processes_marked(box.run_name) if pid != box.record["identity"]["pid"])


def test_a_start_announces_six_steps_and_ends_live(box: Box) -> None:
    done = box.run()
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line[:5] for line in lines if line.startswith("[")] == [f"[{n}/6]" for n in range(1, 7)]
    assert LIVE.format(box.port) in lines
    assert f"http://127.0.0.1:{box.port}/v1" in done.stdout
    assert box.is_listening()
    smoke = json.loads((box.root / "logs/current/smoke.json").read_text())
    assert {name: kept["status"] for name, kept in smoke.items()} == dict.fromkeys(
        ("exact word", "JSON object", "JSON by schema", "tool call"), 200
    )


def test_stop_leaves_no_process_no_port_and_one_private_archive(box: Box) -> None:
    box.run()
    run = box.run_name
    assert len(processes_marked(run)) == 2
    done = box.stop()
    assert done.returncode == 0, done.stderr
    assert processes_marked(run) == []
    assert not box.is_listening()
    (archive,) = box.archives()
    assert archive.stat().st_mode & 0o777 == 0o600
    with tarfile.open(archive) as tar:
        assert {f"{run}/server.log", f"{run}/smoke.json", f"{run}/settings.json"} <= set(tar.getnames())
    assert sorted(path.name for path in (box.root / "logs").iterdir()) == [archive.name]
    assert box.run("status").returncode == 3


def test_a_second_start_reattaches_and_names_what_differs(box: Box) -> None:
    box.run()
    before = box.record
    with takes_less_than(3):
        done = box.run(PORT=str(free_port()), CONTEXT="4096")
    assert done.returncode == 0, done.stderr
    assert LIVE.format(box.port) in done.stdout.splitlines()
    assert "[I_RUNNING]" in done.stdout
    assert "PORT: the server runs with" in done.stderr
    assert "CONTEXT: the server runs with 32768" in done.stderr
    assert box.record == before
    assert not list((box.root / "logs").glob("*.tar.gz"))


def test_restart_replaces_the_server_and_archives_the_old_one(box: Box) -> None:
    box.run()
    old = box.record
    done = box.run("restart")
    assert done.returncode == 0, done.stderr
    assert box.record["identity"]["pid"] != old["identity"]["pid"]
    assert [path.name for path in box.archives()] == [f"{old['folder'].rsplit('/', 1)[1]}.tar.gz"]
    assert box.run("status").returncode == 0


def test_restart_brings_the_old_server_back_when_the_new_one_fails(box: Box) -> None:
    box.run()
    old = box.record
    box.set_engine("second", exit=7)
    done = box.run("restart")
    assert done.returncode == 13
    assert "[W_ROLLBACK]" in done.stderr
    assert "the stub cannot load" in done.stderr
    assert box.record["launch"] == old["launch"]
    assert box.run("status").returncode == 0
    assert len(box.archives()) == 2


def test_restart_that_cannot_prepare_leaves_the_old_server_alone(box: Box) -> None:
    box.run()
    before = box.record
    box.write("embedded/config.json", "[]")
    done = box.run("restart")
    assert done.returncode == 11
    assert "[E_WEIGHTS]" in done.stderr
    assert "config.json" in done.stderr
    assert box.record == before
    assert box.run("status").returncode == 0


def test_a_server_that_cannot_load_is_reported_with_its_last_line_and_cleared_away(box: Box) -> None:
    box.set_engine("broken", exit=3)
    done = box.run()
    assert done.returncode == 13
    assert "[E_START]" in done.stderr
    assert "the server ended with status 3: " in done.stderr
    assert "; the stub cannot load" in done.stderr
    assert len(box.archives()) == 1
    assert not (box.root / ".state/server.json").exists()


def test_a_window_that_does_not_fit_has_a_code_of_its_own(box: Box) -> None:
    words = "the server cannot serve (window_too_large): --context 16384 needs 3.00 GiB; the largest that fits is 576"
    box.set_engine("narrow", exit=4, cries=f"{words}\ndraining")
    done = box.run()
    assert done.returncode == 13
    assert "[E_CONTEXT]" in done.stderr
    assert "the largest that fits is 576" in done.stderr
    assert "lower CONTEXT" in done.stderr


def test_a_server_that_is_not_ready_in_time_is_ended(box: Box) -> None:
    box.set_engine("slow", load_s=60)
    done = box.run(WAIT_TIMEOUT="1")
    assert done.returncode == 14
    assert "[E_API]" in done.stderr
    assert not box.is_listening()


BAD_REPLIES = [
    ("word", {"content": ""}, "E_SMOKE", "exact word: the answer is blank"),
    ("word", {"content": "not ready"}, "E_SMOKE", "exact word: the answer is 'not ready', not 'ready'"),
    ("word", {"content": "!" * 32}, "E_COLLAPSED", "exact word: the answer says '!' over and over"),
    ("json", {"content": "status: ready"}, "E_SMOKE", "JSON object: found 'status: ready', needed JSON"),
    ("json", {"content": '{"status": "red"}'}, "E_SMOKE", "JSON object: found"),
    ("json", {"content": '{"status": ' + " the" * 20}, "E_COLLAPSED", "JSON object: the answer says 'the' over and over"),
    ("tool", {"content": "It is sunny."}, "E_SMOKE", "tool call: found no call but 'It is sunny.', needed get_weather"),
    ("tool", {"tool_calls": [{"function": {"name": "get_weather", "arguments": "{}"}}]}, "E_SMOKE", "tool call: found get_weather({})"),
    ("tool", {"content": None, "tool_calls": 5}, "E_SMOKE", "tool call: no chat completion"),
    ("picture", {"content": "blue"}, "E_SMOKE", "picture: found 'blue', needed red"),
]


@pytest.mark.parametrize(("kind", "message", "code", "found"), BAD_REPLIES)
def test_each_kind_of_bad_reply_fails_the_start_with_its_code(box: Box, kind: str, message: dict, code: str, found: str) -> None:
    box.set_engine("bad", says={kind: message}, vision=True)
    done = box.run(VISION="1")
    assert done.returncode == 15
    assert f"[{code}]" in done.stderr
    assert found in done.stderr
    assert not box.is_listening()


def test_a_picture_is_asked_about_where_it_is_wanted_and_the_server_takes_it(box: Box) -> None:
    box.set_engine("seeing", vision=True)
    box.run(VISION="0")
    assert "picture" not in json.loads((box.root / "logs/current/smoke.json").read_text())
    assert "no picture was asked" not in box.run("restart", VISION="1").stdout
    assert json.loads((box.root / "logs/current/smoke.json").read_text())["picture"]["status"] == 200
    box.stop()
    box.set_engine("blind")
    assert "no picture was asked about" in box.run(VISION="1").stdout


def test_a_killed_server_is_named_by_status_and_recovered_by_start(box: Box) -> None:
    box.run()
    run, orphan = box.run_name, engine_of(box)
    kill_server(box)
    status = box.run("status")
    assert status.returncode == 4
    assert "dead" in status.stdout
    done = box.run()
    assert done.returncode == 0, done.stderr
    assert "[I_RECOVER]" in done.stdout
    assert orphan not in processes_marked(run)
    assert [path.name for path in box.archives()] == [f"{run}.tar.gz"]


def test_a_killed_engine_is_named_by_status_and_recovered_by_start(box: Box) -> None:
    box.run()
    run = box.run_name
    os.kill(engine_of(box), signal.SIGKILL)
    status = box.run("status")
    assert status.returncode == 4
    assert "engine dead" in status.stdout
    done = box.run()
    assert done.returncode == 0, done.stderr
    assert "[I_RECOVER] its engine failed" in done.stdout
    assert [path.name for path in box.archives()] == [f"{run}.tar.gz"]
    assert box.run_name != run


def test_a_server_that_ignores_the_request_to_finish_is_killed(box: Box) -> None:
    box.set_engine("stubborn", finish_s=60)
    box.run()
    run = box.run_name
    began = time.monotonic()
    done = box.stop(STOP_TIMEOUT="1")
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 18
    assert processes_marked(run) == []


def test_a_reused_process_number_is_never_killed(box: Box) -> None:
    box.run()
    record = box.record
    kill_server(box)
    for pid in processes_marked(box.run_name):
        os.kill(pid, signal.SIGKILL)
    record["identity"]["pid"] = os.getpid()
    (box.root / ".state/server.json").write_text(json.dumps(record))
    done = box.stop()
    assert done.returncode == 0, done.stderr
    assert "[I_RECOVER]" in done.stdout


def test_a_held_port_is_refused_with_the_name_of_its_owner(box: Box) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", box.port))
        holder.listen()
        done = box.run()
    assert done.returncode == 7
    assert "[E_PORT]" in done.stderr
    assert f"(process {os.getpid()} of " in done.stderr
    assert not (box.root / "logs").exists()


def test_a_second_start_at_the_same_time_is_refused_with_the_owner(box: Box) -> None:
    box.set_engine("slow", load_s=3)
    first = box.popen()
    wait_until(lambda: (box.root / ".state/server.json").exists())
    second = box.run("restart")
    assert second.returncode == 8
    assert "[E_LOCK]" in second.stderr
    assert "start (process" in second.stderr
    _, err = first.communicate(timeout=30)
    assert first.returncode == 0, err


@pytest.mark.parametrize("name", ["DATA_DIR", "STATE_DIR"])
def test_a_folder_that_cannot_be_written_is_named(box: Box, name: str) -> None:
    file = box.write("a-file", "")
    done = box.run(**{name: f"{file}/below"})
    assert done.returncode == 2
    assert f"{name}={file}/below" in done.stderr


def test_only_the_newest_archives_are_kept(box: Box) -> None:
    for _ in range(3):
        box.run()
        box.stop(LOG_KEEP="2")
    assert len(box.archives()) == 2


def test_a_restart_moves_from_loopback_to_every_address_of_its_own_port(box: Box) -> None:
    assert box.run().returncode == 0
    for host in ("0.0.0.0", "127.0.0.1"):
        done = box.run("restart", HOST=host)
        assert done.returncode == 0, done.stderr
        assert "is held by the server that is replaced" in done.stdout
        assert box.record["launch"]["host"] == host


def test_another_profile_is_told_as_one_difference(box: Box) -> None:
    box.run()
    told = [line for line in box.run("status", PROFILE="", CONTEXT="9999").stdout.splitlines() if line.startswith("differs:")]
    assert [line.split()[1] for line in told] == ["PROFILE:", "CONTEXT:"]


def test_a_server_of_an_earlier_build_is_reattached_and_told_so(box: Box) -> None:
    box.run()
    first = box.record["launch"]["build"]
    assert "build" not in box.run().stderr
    box.set_engine("second")
    done = box.run()
    assert done.returncode == 0, done.stderr
    assert f"[W_DIFFERS] the server runs build {first}, the files here make" in done.stderr
    assert box.record["launch"]["build"] == first
