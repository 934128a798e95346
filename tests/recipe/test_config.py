"""Settings: who beats whom, what is refused, what is reported, what is never shown."""

import itertools
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from failure import Failure
from recipe import config, documents
from recipe.config import Config
from recipe.settings import EMBEDDED, SETTINGS, TWO_GPU, Setting

PATH = "/usr/local/bin:/usr/bin:/bin"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/config.sh").write_text(documents.config_sh())
    return tmp_path


def load(root: Path, **environment: str) -> Config:
    return config.load(root, {"PATH": PATH, "HOME": "/somewhere", **environment})


def refusal(root: Path, **environment: str) -> Failure:
    with pytest.raises(Failure) as caught:
        load(root, **environment)
    assert caught.value.code == "E_CONFIG"
    return caught.value


def warnings(loaded: Config) -> list[str]:
    return [notice.text for notice in loaded.notices if not notice.is_harmless]


SOURCES = ("environment", "scripts/local.sh", ".env")


@pytest.mark.parametrize("given_by", [combination for n in range(4) for combination in itertools.combinations(SOURCES, n)])
def test_environment_beats_local_sh_beats_env_file_beats_default(root: Path, given_by: tuple[str, ...]) -> None:
    ports: dict[str, str] = dict(zip(SOURCES, ("9001", "9002", "9003"), strict=True))
    if "scripts/local.sh" in given_by:
        (root / "scripts/local.sh").write_text("PORT=9002\n")
    if ".env" in given_by:
        (root / ".env").write_text("PORT=9003\n")
    loaded = load(root, **({"PORT": "9001"} if "environment" in given_by else {}))
    winner = given_by[0] if given_by else "default"
    assert loaded.text("PORT") == ports.get(winner, "8022")
    assert loaded.chosen["PORT"].origin.startswith(winner)


@given(st.dictionaries(st.sampled_from(SOURCES), st.integers(1, 65535)), st.sets(st.sampled_from(SOURCES)))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_empty_value_never_hides_one_further_back(root: Path, ports: dict[str, int], empty: set[str]) -> None:
    texts = {source: "" if source in empty else str(ports[source]) for source in ports}
    (root / "scripts/local.sh").write_text(f"PORT={texts['scripts/local.sh']}\n" if "scripts/local.sh" in texts else "")
    (root / ".env").write_text(f"PORT={texts['.env']}\n" if ".env" in texts else "")
    loaded = load(root, **({"PORT": texts["environment"]} if "environment" in texts else {}))
    filled = [texts[source] for source in SOURCES if texts.get(source)]
    assert loaded.text("PORT") == (filled[0] if filled else "8022")


def test_an_exported_empty_value_is_named(root: Path) -> None:
    (root / ".env").write_text("PORT=9003\n")
    assert warnings(load(root, PORT="")) == ["PORT is empty in environment: passed over, .env line 1 counts"]


@pytest.mark.parametrize("profile", [TWO_GPU, EMBEDDED])
def test_every_default_is_allowed(root: Path, profile: str) -> None:
    loaded = load(root, PROFILE=profile)
    for name, setting in SETTINGS.items():
        if loaded.text(name):
            setting.kind.read(loaded.text(name))
    assert loaded.text("DATA_DIR") == "/somewhere/.cache/glm-5.3-flash"
    assert loaded.text("MODEL_DIR") == (
        f"{root}/embedded" if profile == EMBEDDED else f"{loaded.text('DATA_DIR')}/models/GLM-5.3-Flash-EXL3-4bpw"
    )


def test_the_two_gpu_defaults_are_the_published_ones(root: Path) -> None:
    published = {
        "PROFILE": "two-gpu", "RUNTIME": "docker", "GPUS": "0,1", "HOST": "0.0.0.0", "PORT": "8022", "SERVED_NAME": "glm-5.3-flash",
        "CONTEXT": "524288", "PARALLEL": "4", "MAX_TOKENS": "32768", "THINKING": "0", "REASONING_EFFORT": "high",
        "DENSE": "q4", "KV": "fp8",
        "MEMORY_RESERVE_GIB": "6", "KV_POOL_GIB": "3.75", "MIN_GPU_FREE_MIB": "90000", "MODEL_FREE_GIB": "180", "DFLASH2_FREE_GIB": "10",
        "IMAGE_FREE_GIB": "40", "KERNEL_FREE_GIB": "10", "NCCL_P2P_LEVEL": "SYS", "NCCL_CHANNELS": "4", "NCCL_DEBUG": "WARN",
        "CONTAINER_NAME": "glm53-tf-2x", "AUTH": "auto", "P2P": "on",
        "DRAFTER": "dflash2", "VISION": "1", "LOG_KEEP": "10", "WAIT_TIMEOUT": "2400", "SMOKE_TIMEOUT": "120", "STOP_TIMEOUT": "30",
    }  # fmt: skip
    loaded = load(root)
    assert {name: loaded.text(name) for name in published} == published


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("PORT", "0"), ("PORT", "08"), ("PORT", "+4"), ("PORT", "4.0"), ("PORT", " 4"), ("PORT", "65536"), ("PORT", "9" * 40),
        ("PORT", "٣"),
        ("DRY_RUN", "true"), ("GPUS", "0,0"), ("GPUS", "0,1,2"), ("GPUS", "0,1,"), ("HOST", "a b"), ("HOST", "-x"),
        ("HOST", "0"), ("HOST", "127.1"), ("HOST", "300.1.1.1"), ("ENGINE_REPO", "https://me:token@host/x"), ("ENGINE_REPO", "http://token@host/x"),
        ("SERVED_NAME", 'a"b'), ("IMAGE", "-v"), ("CONTAINER_NAME", "--rm"), ("DATA_DIR", "relative"), ("DATA_DIR", "/a:b"),
        ("DATA_DIR", "/a\nb"), ("ENGINE_REPO", "--upload-pack=x"),
        ("PROFILE", "three-gpu"), ("DRAFT_POLICY", "fnc7;x"), ("HF_TOKEN", "a b"),
        ("BASE_IMAGE", "nvcr.io/nvidia/pytorch:25.01-py3"), ("NCCL_CHANNELS", "0"), ("NCCL_P2P_LEVEL", "FAR"), ("NCCL_DEBUG", "loud"),
        ("GPUS", "0,GPU-xyz"), ("GPUS", "0,01:00"), ("MEMORY_RESERVE_GIB", "-1"), ("MEMORY_RESERVE_GIB", "1e3"), ("KV_POOL_GIB", "3.755"),
        ("KV_POOL_GIB", "1025"), ("MIN_GPU_FREE_MIB", "9e4"), ("MAX_GPU_CELSIUS", "101"), ("AUTH", "none"), ("HF_ENDPOINT", "ftp://x"),
        ("TRUSTED_PROXY", "10.0.0.1;"), ("ENGINE_ARGUMENTS", "--context 4"), ("ENGINE_ARGUMENTS", "--no-think"), ("ENGINE_ARGUMENTS", "-x"),
        ("ENGINE_ARGUMENTS", "--api-key-f=/x"), ("ENGINE_ARGUMENTS", "words"), ("ENGINE_ARGUMENTS", "--spill-dir 'x"),
        ("ENGINE_VARIABLES", "LD_PRELOAD=/x"), ("ENGINE_VARIABLES", "NCCL_API_KEY=1"), ("ENGINE_VARIABLES", "NCCL_X"),
        ("ENGINE_VARIABLES", "PATH=/x"), ("ENGINE_VARIABLES", "NCCL_A=1 PYTHONPATH=/x"),
    ],
)  # fmt: skip
def test_a_value_outside_what_is_allowed_is_refused_with_its_name_and_origin(root: Path, name: str, text: str) -> None:
    failure = refusal(root, **{name: text})
    assert name in failure.found
    assert "environment" in failure.found


def test_a_refusal_shows_no_password_and_no_whole_file(root: Path) -> None:
    failure = refusal(root, ENGINE_REPO="https://me:hf_canary@host/x", SERVED_NAME="é" * 3_000_000)
    assert "//...@host/x" in failure.found
    assert "hf_canary" not in failure.found
    assert len(failure.found) < 1000


@pytest.mark.parametrize("name", ["br{ace}", "{root}", "{DATA_DIR}", "{home}x"])
def test_a_place_with_braces_in_its_name_is_taken_as_it_is(tmp_path: Path, name: str) -> None:
    root, home = tmp_path / name, f"/{name}"
    loaded = config.load(root, {"PROFILE": "embedded", "HOME": home})
    assert [str(loaded.folder(one)) for one in ("STATE_DIR", "DATA_DIR")] == [f"{root}/.state", f"{home}/.cache/glm-5.3-flash"]


def test_every_wrong_value_is_named_at_once(root: Path) -> None:
    failure = refusal(root, PORT="0", PARALLEL="x")
    assert "PORT='0'" in failure.found
    assert "PARALLEL='x'" in failure.found


def test_a_secret_is_never_shown(root: Path) -> None:
    canary = "canary-token-93c1"
    loaded = load(root, HF_TOKEN=canary)
    assert canary not in loaded.shown("HF_TOKEN")
    assert canary not in str(loaded.public())
    assert canary not in refusal(root, HF_TOKEN=f"{canary} x").found
    (root / ".env").write_text(f"HF_TOKEN={canary} #tail\n")
    assert [canary in text for text in warnings(load(root))] == [False]


def test_unknown_and_look_alike_keys_are_reported(root: Path) -> None:
    (root / ".env").write_text("PROT=9000\nCOLOUR_OF_THE_SKY=blue\n")
    (root / "scripts/local.sh").write_text("CONTXT=64\nhelper=1\n")
    assert warnings(load(root)) == [
        "scripts/local.sh: CONTXT is no setting; CONTEXT is: ignored",
        ".env line 1: PROT is no setting; PORT is: ignored",
        ".env line 2: COLOUR_OF_THE_SKY is no setting: ignored",
    ]


def test_local_sh_computes_from_the_defaults_in_a_clean_shell(root: Path) -> None:
    (root / "scripts/local.sh").write_text(
        'CONTEXT=$((TWO_GPU[CONTEXT] / 2))\nSERVED_NAME="${CANARY:-clean}"\necho noise\n[[ -n $NOTHING ]] && PORT=1\n'
    )
    loaded = load(root, CANARY="dirty")
    assert loaded.number("CONTEXT") == 262144
    assert loaded.text("SERVED_NAME") == "clean"
    assert loaded.text("PORT") == "8022"


def test_local_sh_that_sets_a_default_again_still_beats_the_env_file(root: Path) -> None:
    (root / "scripts/local.sh").write_text("PORT=8022\n")
    (root / ".env").write_text("PORT=9003\n")
    assert load(root).chosen["PORT"].origin == "scripts/local.sh"


@pytest.mark.parametrize(("text", "reason"), [("if true; then\n", "syntax error"), ("exit 3\n", "status 3")])
def test_a_broken_local_sh_is_refused(root: Path, text: str, reason: str) -> None:
    (root / "scripts/local.sh").write_text(text)
    assert reason in refusal(root).found


@pytest.mark.parametrize("name", [".env", "scripts/local.sh"])
def test_a_file_of_settings_that_a_link_does_not_find_is_told_and_not_taken_for_none(root: Path, name: str) -> None:
    (root / name).symlink_to("/nowhere/settings")
    assert refusal(root).found.startswith(f"{name} c")
    assert "No such file" in refusal(root).found


ALIASES = [(setting, alias) for setting in SETTINGS.values() for alias in setting.aliases]


@pytest.mark.parametrize(("setting", "alias"), ALIASES, ids=[alias for _, alias in ALIASES])
def test_an_alias_stands_for_its_setting_and_the_source_decides_before_the_name(root: Path, setting: Setting, alias: str) -> None:
    one, other = (setting.two_gpu, setting.embedded) if setting.two_gpu else ("one", "other")
    (root / ".env").write_text(f"{setting.name}={one}\n")
    loaded = load(root, **{alias: other})
    assert (loaded.text(setting.name), loaded.chosen[setting.name].origin) == (other, f"environment ({alias})")
    loaded = load(root, **{alias: other, setting.name: one})
    assert loaded.chosen[setting.name].origin == "environment"
    assert any(f"not environment ({alias})" in text for text in warnings(loaded)) == (one != other)


GIVEN = st.dictionaries(st.sampled_from(sorted(SETTINGS)), st.sets(st.sampled_from(SOURCES), min_size=1), max_size=8)


@given(GIVEN, st.sampled_from([TWO_GPU, EMBEDDED]))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_settings_from_any_sources_obey_one_order(root: Path, given_by: dict[str, set[str]], profile: str) -> None:
    """Every value is a default of one of the profiles, so that all of them are allowed; sources are told apart by origin."""
    defaults = {name: SETTINGS[name].default(profile) for name in given_by}
    texts = {name: text for name, text in defaults.items() if text and "{" not in text}
    for file, source, quote in ((".env", ".env", ""), ("scripts/local.sh", "scripts/local.sh", "'")):
        lines = [f"{name}={quote}{text}{quote}" for name, text in texts.items() if source in given_by[name]]
        (root / file).write_text("".join(f"{line}\n" for line in lines))
    loaded = load(root, **{name: text for name, text in texts.items() if "environment" in given_by[name]})
    for name, chosen in loaded.chosen.items():
        first = next((source for source in SOURCES if name in texts and source in given_by[name]), "default")
        assert chosen.origin.startswith(first), name
        assert name not in texts or chosen.text == texts[name]


def test_a_variable_that_hides_a_line_of_a_file_is_told_by_config(root: Path) -> None:
    (root / ".env").write_text("DATA_DIR=/large/disk\n")
    told = [notice.text for notice in load(root, DATA_DIR="/small/disk").notices]
    assert told == ["DATA_DIR from environment counts, not .env line 1"]


def test_weights_lie_where_settings_say_whatever_the_hubs_client_was_told(root: Path) -> None:
    ambient = {"HF_HOME": "/elsewhere", "HF_HUB_CACHE": "/elsewhere", "TRANSFORMERS_CACHE": "/elsewhere"}
    assert load(root, **ambient).text("MODEL_DIR") == load(root).text("MODEL_DIR")
