"""The verbs beside start and stop: what they say, what they leave alone, and their exit statuses."""

import json
import os
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from fixtures.clone_box import Box, takes_less_than
from recipe.cli import VERBS
from recipe.settings import SETTINGS

CANARY = "canary-of-the-hub-token-6a1f"


def codes(text: str) -> list[str]:
    return [told["code"] for told in map(json.loads, text.splitlines()) if "code" in told]


def test_doctor_asks_every_check_starts_nothing_and_changes_nothing(box: Box) -> None:
    before = box.tree()
    with takes_less_than(2):
        done = box.run("doctor")
    assert done.returncode == 0, done.stderr
    for code in ("I_PLATFORM", "I_DEPENDENCY", "I_GPU", "I_DISK", "I_PORT", "I_AUTH"):
        assert f"[{code}]" in done.stdout
    assert "Nothing stands in the way" in done.stdout
    assert box.tree() == before
    assert not box.is_listening()


def test_doctor_names_an_edited_engine_and_asks_on(box: Box) -> None:
    box.write("engine/content", "edited")
    done = box.run("doctor", HOST="203.0.113.1")
    assert done.returncode == 9
    assert "[E_PIN]" in done.stderr
    assert "[E_PORT]" in done.stderr


def test_doctor_beside_a_running_server_finds_its_port_in_good_hands(box: Box) -> None:
    box.run()
    done = box.run("doctor")
    assert done.returncode == 0, done.stderr
    assert "held by the server that is replaced" in done.stdout


def test_json_is_one_object_a_line_and_the_exit_status_stays(box: Box) -> None:
    done = box.run("--json")
    assert done.returncode == 0
    assert "I_AUTH" in codes(done.stdout)
    assert {"text": f"GLM-5.3-Flash-EXL3 is now LIVE! on port {box.port}"} in map(json.loads, done.stdout.splitlines())
    (first,) = [told for told in map(json.loads, box.run("--json", "status").stdout.splitlines()) if "state" in told]
    run = box.record["folder"]
    assert first == {"state": "ready", "url": f"http://127.0.0.1:{box.port}", "model": "glm-5.3-flash", "run": run}
    box.stop()
    assert json.loads(box.run("--json", "status").stdout.splitlines()[0]) == {"state": "stopped"}
    assert codes(box.run("doctor", "--json").stdout) == codes(box.run("--json", "doctor").stdout)
    failed = box.run("--json", "doctor", HOST="203.0.113.1")
    assert failed.returncode == 7
    last = json.loads(failed.stdout.splitlines()[-1])
    assert (last["code"], set(last)) == ("E_PORT", {"code", "meaning", "found", "needed", "do"})


def test_config_in_json_has_value_unit_range_and_origin_of_every_setting(box: Box) -> None:
    told = [json.loads(line) for line in box.run("--json", "config", HF_TOKEN=CANARY).stdout.splitlines()]
    rows = {row["setting"]: row for row in told if "setting" in row}
    assert set(rows) == set(SETTINGS)
    port = {"value": str(box.port), "unit": "", "allowed": "a whole number from 1 to 65535", "origin": "environment"}
    assert rows["PORT"] == {"setting": "PORT", **port}
    assert (rows["WAIT_TIMEOUT"]["unit"], CANARY in str(told)) == ("s", False)


@pytest.mark.parametrize("words", [("frobnicate",), ("doctor", "--quickly"), ("logs", "--rank", "7"), ("uninstall", "--maybe")])
def test_words_that_are_none_are_refused(box: Box, words: tuple[str, ...]) -> None:
    done = box.run(*words)
    assert done.returncode == 2
    assert "[E_CONFIG]" in done.stderr


def test_the_first_start_makes_a_private_key_says_where_and_later_ones_keep_it(box: Box) -> None:
    done = box.run()
    key = box.root / ".state/api-key"
    assert f"[I_KEY] {key}" in done.stdout
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    text = key.read_text()
    assert text.strip() not in done.stdout + done.stderr
    again = box.run()
    assert "[I_KEY]" not in again.stdout
    assert key.read_text() == text
    assert "--api-key-file" in box.record["launch"]["argv"]


def test_an_open_server_gets_no_key_and_says_so_at_every_start(box: Box) -> None:
    for _ in range(2):
        done = box.run(AUTH="open", HOST="0.0.0.0")
        assert done.returncode == 0, done.stderr
        assert "[W_OPEN_BIND] HOST=0.0.0.0 AUTH=open: whoever reaches this host can use the API, without a key" in done.stderr
    restarted = box.run("restart", AUTH="open", HOST="0.0.0.0")
    assert "[W_OPEN_BIND]" in restarted.stderr
    assert not (box.root / ".state/api-key").exists()


def test_a_key_file_that_others_may_read_or_that_is_empty_is_told(box: Box) -> None:
    key = box.write("key", "some-key-of-mine\n")
    key.chmod(0o644)
    assert "[W_SECRET_FILE]" in box.run("doctor", API_KEY_FILE=str(key)).stderr
    key.write_text("# nothing\n")
    done = box.run("doctor", API_KEY_FILE=str(key))
    assert done.returncode == 2
    assert "[E_KEY]" in done.stderr


@pytest.mark.parametrize("text", ["\ufeffof-an-editor-with-a-mark", "me: schl\u00fcssel-von-mir", "k" * 5000])
def test_a_key_that_no_request_can_carry_is_told_before_anything_is_started(box: Box, text: str) -> None:
    key = box.write("key", f"{text}\n")
    key.chmod(0o600)
    done = box.run(API_KEY_FILE=str(key))
    assert (done.returncode, "[E_KEY]" in done.stderr) == (2, True)
    assert "a key in it is not of printable ASCII characters" in done.stderr
    assert text[-9:] not in done.stderr


def test_a_key_file_that_went_while_the_server_runs_is_told_with_what_makes_one(box: Box) -> None:
    box.run()
    (box.root / ".state/api-key").unlink()
    done = box.run()
    assert (done.returncode, "./start.sh restart: that makes one" in done.stderr) == (2, True)
    assert box.run("restart").returncode == 0


def test_each_rank_has_a_log_of_its_own_and_the_archive_holds_both(box: Box) -> None:
    box.run()
    folder = Path(box.record["folder"])
    assert "--log-dir" in box.record["launch"]["argv"]
    absent = box.run("logs", "--rank", "1")
    assert (absent.returncode, "rank-1.log: No such file" in absent.stderr) == (17, True)
    (folder / "rank-1.log").write_text("INFO rank 1 lockstep: one\nbox:7:9 [1] NCCL WARN slow\n")
    assert box.run("logs", "--rank", "1").stdout.splitlines() == ["INFO rank 1 lockstep: one", "box:7:9 [1] NCCL WARN slow"]
    assert "NCCL" not in box.run("logs", "--rank", "0").stdout
    box.stop()
    with tarfile.open(box.archives()[0]) as tar:
        assert {"server.log", "rank-1.log"} <= {Path(name).name for name in tar.getnames()}


def test_a_support_bundle_is_private_and_holds_settings_findings_and_logs(box: Box) -> None:
    box.run()
    done = box.run("support-bundle", HF_TOKEN=CANARY)
    assert done.returncode == 0, done.stderr
    (bundle,) = (box.root / "logs").glob("support-*.tar.gz")
    assert stat.S_IMODE(bundle.stat().st_mode) == 0o600
    with tarfile.open(bundle) as tar:
        names = {name.removeprefix("support/") for name in tar.getnames()}
        assert {"config.txt", "doctor.jsonl", "status.txt", "server.json", "health.json", "logs/server.log", "uname.txt"} <= names
        findings = tar.extractfile("support/doctor.jsonl")
        assert findings is not None
        assert "I_AUTH" in codes(findings.read().decode())


def test_uninstall_says_sizes_and_needs_a_yes(box: Box) -> None:
    box.run()
    refused = box.run("uninstall", "--yes")
    assert (refused.returncode, "[E_STOP]" in refused.stderr) == (16, True)
    box.stop()
    asked = box.run("uninstall")
    assert asked.returncode == 2
    assert "GiB" in asked.stdout
    mine = box.home / ".cache/glm-5.3-flash/of-somebody-else"
    mine.write_text("stays")
    done = box.run("uninstall", "--yes")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in mine.parent.iterdir()] == [mine.name]
    assert not (box.root / ".state").exists()
    assert box.archives() == []
    assert (box.root / "start.sh").exists()


def test_uninstall_touches_nothing_that_others_keep_in_the_same_folders(box: Box) -> None:
    box.run()
    box.stop()
    box.run("support-bundle")
    places = dict.fromkeys(("STATE_DIR", "LOG_DIR", "DATA_DIR", "KERNEL_CACHE", "SPILL_DIR"), box.root / "mine")
    names = ("thesis.txt", "glm53-tf-2x/notes", "support-case.tar.gz", "lock.txt", "models/of-mine/w", "wheels/x.whl", "engines/e/f")
    kept = {box.write(f"mine/{name}", "") for name in names}
    made = ("server.json.bak", "watch.json", "rank0-3.kept", "secret", "wheels/0123456789abcdef/x.whl", "models/m/.recipe-manifest.json")
    gone = {box.write(f"mine/{name}", "") for name in made[1:]}
    kept.add(box.write(f"mine/{made[0]}", ""))
    before = box.tree()
    shown = box.run("uninstall", "--yes", DRY_RUN="1", **{name: str(place) for name, place in places.items()})
    assert (shown.returncode, "[I_DRY_RUN]" in shown.stdout) == (0, True)
    assert box.tree() == before
    done = box.run("uninstall", "--yes", **{name: str(place) for name, place in places.items()})
    assert done.returncode == 0, done.stderr
    assert [path for path in kept if not path.exists()] == []
    assert [path for path in gone if path.exists()] == []


def test_uninstall_leaves_what_another_clone_uses_and_no_empty_folder(box: Box, tmp_path: Path) -> None:
    box.run()
    box.stop()
    for folder in (tmp_path / "other", box.home / ".cache/glm-5.3-flash/unfinished"):
        folder.mkdir()
    data = box.home / ".cache/glm-5.3-flash"
    other = box.home / ".cache/glm-5.3-flash/engines/0123456789abcdef/ready.json"
    other.parent.mkdir()
    other.write_text(json.dumps({"root": str(tmp_path / "other")}))
    done = box.run("uninstall", "--yes")
    assert f"what is shared in {data} stays: {tmp_path}/other uses it" in done.stdout
    assert list((data / "environments").iterdir()) != []
    assert [path.name for path in (data / "engines").iterdir()] == ["0123456789abcdef"]
    (tmp_path / "other").rmdir()
    assert box.run("uninstall", "--yes").returncode == 0
    assert not data.exists()
    assert not (box.root / ".state").exists()


@pytest.mark.parametrize("verb", ["install-service", "patches", "watch", "support-bundle", "documents"])
def test_what_has_no_plan_is_not_done_in_a_dry_run(box: Box, verb: str) -> None:
    before = box.tree()
    done = box.run(verb, DRY_RUN="1")
    assert (done.returncode, f"{verb} has no plan" in done.stderr) == (2, True)
    assert box.tree() == before


def test_bash_completes_every_verb(box: Box) -> None:
    script = box.run("completion").stdout
    ask = f'{script}\nCOMP_WORDS=(./start.sh ""); COMP_CWORD=1; _glm_start; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"]})
    assert set(VERBS) <= set(done.stdout.split())


def test_a_setting_without_effect_is_named_with_its_reason(box: Box) -> None:
    box.write(".env", "MASTER_PORT=29551\nTF_GLM_DENSE=bf16\nDENSE=fp8\n")
    done = box.run("config")
    assert "[W_NO_EFFECT] MASTER_PORT from .env line 1: ranks of one host meet" in done.stderr
    assert "DENSE from .env line 3 counts, not .env line 2 (TF_GLM_DENSE)" in done.stderr


def test_logs_are_followed_until_the_server_ends(box: Box) -> None:
    box.run()
    log = Path(box.record["folder"]) / "rank-1.log"
    log.write_text("said before\nsaid in two")
    following = box.popen("logs", "-f", "--rank", "1")
    assert following.stdout is not None
    assert following.stdout.readline() == "said before\n"
    with log.open("a") as file:
        file.write(" parts\nsaid late\n")
    assert following.stdout.readline() == "said in two parts\n"
    assert following.stdout.readline() == "said late\n"
    box.stop()
    assert following.wait(10) == 0
