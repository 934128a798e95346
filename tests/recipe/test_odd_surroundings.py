"""Surroundings that nobody planned for: links, closed or full outputs, odd locales and homes, folders of others, full disks, clocks."""

import os
import shutil
import site
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.clone_box import ROOT, Box, Done, heard
from recipe import config, files, runlog
from recipe.adapters import kernel
from recipe.environment import READY, Environment, python_tag
from recipe.job import Job
from recipe.ui import Ui


def shell(box: Box, script: str) -> Done:
    """A line of Bash in the clone."""
    return heard(["bash", "-c", script], box.environment, box.root)


@pytest.mark.parametrize(
    "call", ["sh start.sh status", "ln -s $PWD/start.sh ../link; cd /; $OLDPWD/../link status", "bash -u ./start.sh status"]
)
def test_it_is_found_however_it_is_called(box: Box, call: str) -> None:
    done = shell(box, call)
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.startswith("stopped")


@pytest.mark.parametrize("output", [">/dev/full 2>&1", ">&- 2>&-", "2>&1 | true"])
def test_a_restart_that_nobody_hears_loses_no_server(box: Box, output: str) -> None:
    box.run()
    before = box.run_name
    shell(box, f"./start.sh restart {output}")
    assert box.run_name != before
    assert box.run("status").returncode == 0


def test_a_clone_under_a_setting_for_line_ends_holds_the_committed_bytes(tmp_path: Path) -> None:
    (tmp_path / ".gitattributes").write_bytes((ROOT / ".gitattributes").read_bytes())
    names = ("start.sh", "embedded/config.json", "patches/series.yaml", "requirements/host.lock")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"one\ntwo\n")
    script = "git init -q; git add -A; git -c core.autocrlf=true checkout-index --all --prefix=out/"
    subprocess.run(["bash", "-ec", script], cwd=tmp_path, check=True)
    assert [name for name in names if (tmp_path / "out" / name).read_bytes() != b"one\ntwo\n"] == []


def test_following_a_log_ends_with_its_reader(box: Box) -> None:
    box.run()
    (Path(box.record["folder"]) / "server.log").write_text("said\n")
    more = "(while sleep 0.2; do echo more; done >>logs/current/server.log) &"
    assert shell(box, f"{more} ./start.sh logs -f | head -1; kill $!").stdout == "said\n"


def test_a_locale_without_the_characters_shows_them_otherwise(box: Box) -> None:
    done = box.run("config", LC_ALL="POSIX", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert done.returncode == 0, done.stderr
    assert r"85 \xb0C" in done.stdout


@pytest.mark.parametrize("home", ["", "somewhere/else"])
def test_a_home_that_is_none_is_asked_of_the_list_of_users(tmp_path: Path, home: str) -> None:
    assert config.load(tmp_path, {"HOME": home}).folder("DATA_DIR") == Path(kernel.home({}), ".cache/glm-5.3-flash")


def test_only_the_place_that_is_wrong_is_named_not_those_below_it(box: Box) -> None:
    done = box.run("status", DATA_DIR="data")
    assert "DATA_DIR='data' from environment" in done.stderr
    assert "SPILL_DIR" not in done.stderr


@pytest.mark.parametrize(("name", "status"), [("STATE_DIR", 2), ("DATA_DIR", 2), ("LOG_DIR", 17)])
def test_a_folder_that_cannot_be_written_to_is_told_before_anything_is_done(box: Box, name: str, status: int) -> None:
    file = box.write("a-file", "")
    done = box.run("doctor", **{name: f"{file}/below"})
    assert done.returncode == status
    assert f"{name}={file}/below: {file} is no folder" in done.stderr


@pytest.mark.parametrize("small", ["size=1m", "size=64m,nr_inodes=20"], indirect=True)
def test_a_disk_too_full_for_logs_is_told_while_the_old_server_still_serves(box: Box, small: Path) -> None:
    box.run()
    before = box.record
    done = box.run("restart", LOG_DIR=str(small / "logs"))
    assert done.returncode == 6
    assert f"free at LOG_DIR={small}/logs" in done.stderr
    assert box.record == before
    assert box.run("status").returncode == 0


def test_a_run_folder_that_cannot_be_made_is_told_while_the_old_server_still_serves(box: Box) -> None:
    box.run()
    before = box.record
    box.write("elsewhere/current/of-somebody-else", "")
    done = box.run("restart", LOG_DIR=str(box.root / "elsewhere"))
    assert done.returncode == 17
    assert f"{box.root}/elsewhere" in done.stderr
    assert box.record == before
    assert box.run("status").returncode == 0


def test_a_tool_that_cannot_be_run_counts_as_missing(box: Box) -> None:
    for tool in ("nvidia-smi", "docker", "uname"):
        box.write(f"tools/{tool}", "").chmod(0o755 if tool == "uname" else 0o644)
    path = f"{box.root}/tools:{box.environment['PATH']}"
    done = box.run("doctor", PROFILE="two-gpu", PATH=path)
    assert done.returncode == 5
    assert "no GPU driver (nvidia-smi cannot be run: Permission denied)" in done.stderr
    assert box.run("support-bundle", PATH=path).returncode == 0


@pytest.mark.parametrize("words", [("stop",), ("watch", "pause")])
def test_a_filesystem_that_became_read_only_is_told(box: Box, small: Path, words: tuple[str, ...]) -> None:
    (small / "state").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    done = box.run(*words, STATE_DIR=str(small / "state"))
    assert (done.returncode, "Read-only file system" in done.stderr) == (2, True)
    assert "filesystem to be written to" in done.stderr


@pytest.fixture
def open_box() -> Iterator[Box]:
    """A clone that other users can reach."""
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    made = Box(place)
    yield made
    made.clear()
    shutil.rmtree(place)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can call as somebody else")
@pytest.mark.parametrize("script", ["start.sh", "stop.sh"])
def test_a_record_of_another_user_is_not_taken_for_none(open_box: Box, script: str) -> None:
    open_box.run()
    # That user need not be able to run the Python that runs this.
    environment = {name: value for name, value in open_box.environment.items() if name != "PYTHON"}
    words = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", open_box.root / script]
    done = heard(words, environment)
    assert done.returncode == 2, done.stdout
    assert f"{open_box.root}/.state" in done.stderr
    assert "Permission denied" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_clone_of_another_user_is_told_with_the_way_out(box: Box) -> None:
    os.chown(box.root, 65534, 65534)
    os.chown(box.root / ".git", 65534, 65534)
    done = box.run("doctor")
    assert done.returncode == 9
    assert f"git config --global --add safe.directory '{box.root}'" in done.stderr


def test_a_variable_that_looks_like_a_setting_is_told_by_config(box: Box) -> None:
    assert "note: environment: CONTEX is no setting; CONTEXT is: ignored" in box.run("config", CONTEX="9").stdout


def test_a_clock_put_back_costs_no_archive(tmp_path: Path) -> None:
    old = runlog.create(tmp_path)
    first = runlog.archive(old, 1)
    assert first is not None
    os.utime(first, (9e9, 9e9))
    second = runlog.archive(runlog.create(tmp_path), 1)
    assert list(tmp_path.glob("*.tar.gz")) == [second]


def test_a_user_without_a_name_is_named_by_number() -> None:
    assert kernel.user(4_242_424) == "user 4242424"


def test_after_an_update_the_tools_of_before_serve_until_there_are_new_ones(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(config.load(box.root, box.environment), box.environment, Ui({}), "status")
    now = Environment("host", job)
    for name, python in (("host-other", "another Python"), ("host-before", python_tag())):
        now.place.with_name(name).mkdir()
        files.write_json(now.place.with_name(name) / READY, {"python": python})
    seen: list[str] = []
    monkeypatch.setattr(site, "addsitedir", seen.append)
    now.adopt()
    box.write("requirements/host.lock", "# another list")
    Environment("host", job).adopt()
    assert [Path(place).parents[2].name for place in seen] == [now.place.name, "host-before"]


def test_a_bundle_is_packed_though_the_key_is_gone(box: Box) -> None:
    box.run()
    (box.root / ".state/api-key").unlink()
    done = box.run("support-bundle")
    assert done.returncode == 0, done.stderr
