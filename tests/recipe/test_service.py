"""Units that systemd's own check takes, and the watchdog: what it brings back, what it leaves alone, when it gives up."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from fixtures.clone_box import Box
from fixtures.waiting import wait_until
from recipe import config
from recipe.job import Job
from recipe.ui import Ui
from recipe.verbs import service

ANALYZE = shutil.which("systemd-analyze")


def install(box: Box, place: Path, **settings: str) -> "subprocess.CompletedProcess[str]":
    return box.run("install-service", str(place), **settings)


def kill(box: Box) -> None:
    os.kill(box.record["identity"]["pid"], signal.SIGKILL)


@pytest.mark.skipif(ANALYZE is None, reason="no systemd-analyze here")
def test_the_units_pass_systemds_own_check_and_say_how_to_turn_them_on(box: Box, tmp_path: Path) -> None:
    place = tmp_path / "units"
    done = install(box, place, HUGGING_FACE_HUB_TOKEN="canary-token-77", CONTEXT="4096", TF_GLM_KV="fp8")
    assert done.returncode == 0, done.stderr
    assert "[I_SERVICE]" in done.stdout
    assert "enable --now glm-5.3-flash.service glm-5.3-flash-watch.timer" in done.stdout
    names = sorted(path.name for path in place.iterdir())
    assert names == ["glm-5.3-flash-watch.service", "glm-5.3-flash-watch.timer", "glm-5.3-flash.service"]
    texts = "".join(path.read_text() for path in place.iterdir())
    assert f'ExecStart=/usr/bin/env bash "{box.root}/start.sh"\n' in texts
    assert 'Environment="CONTEXT=4096"' in texts
    assert 'Environment="KV=fp8"' in texts
    assert "canary-token-77" not in texts
    checked = subprocess.run(
        [str(ANALYZE), "verify", "--man=no", *(str(place / name) for name in names)], capture_output=True, text=True, check=False
    )
    assert [line for line in checked.stderr.splitlines() if "glm-5.3-flash" in line] == []


@pytest.mark.skipif(ANALYZE is None, reason="no systemd-analyze here")
def test_a_clone_whose_path_is_no_plain_word_has_units_that_systemd_takes(tmp_path: Path) -> None:
    (place := tmp_path / "a \"b' $HOME %h \\c {d} ;e").mkdir()
    box = Box(place)
    done = install(box, tmp_path / "units")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "units/glm-5.3-flash.service").exists()


def test_uninstall_finds_this_clones_units_and_the_links_that_turn_them_on(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(config.load(box.root, box.environment), box.environment, Ui({}), "uninstall")
    monkeypatch.setattr(service, "_usual_place", lambda job: tmp_path)
    assert service.installed(job) == []
    install(box, tmp_path)
    (tmp_path / "glm-5.3-flash-of-mine.service").write_text("")
    wants = tmp_path / "multi-user.target.wants"
    wants.mkdir()
    (wants / "glm-5.3-flash.service").symlink_to(tmp_path / "glm-5.3-flash.service")
    found = [str(path.relative_to(tmp_path)) for path in service.installed(job)]
    own = ["glm-5.3-flash-watch.service", "glm-5.3-flash-watch.timer", "glm-5.3-flash.service"]
    assert found == [*own, "multi-user.target.wants/glm-5.3-flash.service"]
    text = (tmp_path / own[2]).read_text()
    (tmp_path / own[2]).write_text(text.replace(str(box.root), "/another/clone"))
    assert service.installed(job) == []


@pytest.mark.skipif(ANALYZE is None, reason="no systemd-analyze here")
def test_units_that_systemd_does_not_take_are_told(box: Box, tmp_path: Path) -> None:
    (box.root / "start.sh").rename(box.root / "moved.sh")
    (box.root / "start.sh").symlink_to("moved.sh")
    template = box.root / "scripts/recipe/verbs/service.py"
    template.write_text(template.read_text().replace("Type=oneshot\nRemain", "Type=somehow\nRemain"))
    done = install(box, tmp_path / "units")
    assert done.returncode == 3
    assert "[E_SERVICE]" in done.stderr
    assert "somehow" in done.stderr


def test_a_folder_for_units_that_cannot_be_made_is_named(box: Box) -> None:
    file = box.write("a-file", "")
    done = install(box, file / "below")
    assert done.returncode == 3
    assert "[E_SERVICE]" in done.stderr
    assert f"{file}/below" in done.stderr


def test_the_watchdog_starts_a_dead_server_again_as_it_was_at_the_third_look(box: Box) -> None:
    box.run(CONTEXT="4096")
    before = box.record
    assert "[I_WATCH]" in box.run("watch").stdout
    kill(box)
    for look in (1, 2):
        done = box.run("watch")
        assert done.returncode == 0
        assert f"({look} of 3)" in done.stderr
        assert box.run("status").returncode == 4
    # What the files say now does not matter: the server comes back as it was.
    done = box.run("watch", CONTEXT="8192")
    assert done.returncode == 0, done.stderr
    assert "[W_WATCH]" in done.stderr
    assert "LIVE!" in done.stdout
    assert box.record["launch"] == before["launch"]
    assert len(box.archives()) == 1
    assert box.run("status", CONTEXT="4096").returncode == 0


@pytest.mark.parametrize("name", ["server.json", "watch.json", "lived.json"])
@pytest.mark.parametrize("text", ["", "{}", "[" * 100_000, '{"format": 2, "launch": {}, "folder": 5, "identity": {"pid": "x"}}'])
def test_a_state_file_that_is_none_is_taken_for_none(box: Box, name: str, text: str) -> None:
    box.write(f".state/{name}", text)
    for words in (("watch",), ("status",), ("rollback",), ("stop",)):
        assert box.run(*words).returncode in (0, 3, 13), words


def test_a_paused_watchdog_leaves_a_dead_server_alone(box: Box) -> None:
    box.run()
    assert "paused" in box.run("watch", "pause").stdout
    kill(box)
    for _ in range(4):
        assert "[I_WATCH] paused" in box.run("watch").stdout
    assert box.run("status").returncode == 4
    assert "looking again" in box.run("watch", "resume").stdout
    assert "(1 of 3)" in box.run("watch").stderr
    assert box.run("watch", "twice").returncode == 2


def test_the_watchdog_gives_up_after_three_tries_and_a_stop_ends_them(box: Box) -> None:
    box.run()
    kill(box)
    box.plan_file.write_text('{"exit": 3}')
    for _ in range(2):
        box.run("watch")
    assert [box.run("watch").returncode for _ in range(3)] == [13, 13, 13]
    done = box.run("watch")
    assert done.returncode == 0
    assert "given up" in done.stderr
    assert box.stop().returncode == 0
    assert "no server to look after" in box.run("watch").stdout
    box.plan_file.write_text("{}")
    assert box.run().returncode == 0


def test_the_watchdog_leaves_a_stopped_server_stopped_and_waits_for_who_is_at_work(box: Box) -> None:
    assert "no server to look after" in box.run("watch").stdout
    box.run()
    box.stop()
    assert "no server to look after" in box.run("watch").stdout
    assert not box.is_listening()
    box.set_engine("slow", load_s=4)
    start = box.popen()
    wait_until((box.root / ".state/server.json").exists)
    assert "holds" in box.run("watch").stdout
    _, err = start.communicate(timeout=30)
    assert start.returncode == 0, err
