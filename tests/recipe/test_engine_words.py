"""What the engine is told of the settings that decide its bits and its drafts."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from lockstep.config.serving import ServingOptions
from recipe import config
from recipe.launching import engine_variables, engine_words

PLACES = {"model": "/m", "drafter": "/d", "logs": "/l", "key": ""}


def words(tmp_path: Path, **settings: str) -> dict[str, str]:
    """Option to value, of a profile's settings and those given."""
    told = engine_words(config.load(tmp_path, {"HOME": str(tmp_path), **settings}), PLACES, host="127.0.0.1")
    return {name: value for name, value in pairwise(told) if name.startswith("--") and not value.startswith("--")}


@pytest.mark.parametrize(
    ("profile", "wanted"),
    [
        ("two-gpu", {"--ranks": "2", "--dense": "q4", "--kv": "fp8", "--drafter": "/d", "--draft-policy": "auto", "--device": "cuda"}),
        ("embedded", {"--ranks": "1", "--dense": "bf16", "--kv": "bf16", "--drafter": "/d", "--draft-policy": "auto", "--device": "cpu"}),
    ],
)
def test_a_profile_tells_the_engine_its_forms_ranks_and_drafter(tmp_path: Path, profile: str, wanted: dict[str, str]) -> None:
    assert words(tmp_path, PROFILE=profile).items() >= wanted.items()


def test_given_settings_reach_the_engine(tmp_path: Path) -> None:
    given = {"DENSE": "fp8", "KV": "fp8", "RANKS": "2", "DRAFTER": "mtp", "DRAFT_POLICY": "nc4:0.3:1.5"}
    told = words(tmp_path, PROFILE="embedded", **given)
    assert told.items() >= {"--dense": "fp8", "--kv": "fp8", "--ranks": "2", "--drafter": "mtp", "--draft-policy": "nc4:0.3:1.5"}.items()
    assert words(tmp_path, PROFILE="embedded", DRAFTER="none")["--drafter"] == "none"


@pytest.mark.parametrize("profile", ["two-gpu", "embedded"])
def test_the_engine_takes_every_word(tmp_path: Path, profile: str) -> None:
    told = engine_words(config.load(tmp_path, {"HOME": str(tmp_path), "PROFILE": profile, "THINKING": "1"}), PLACES, host="::1")
    options = ServingOptions.from_argv(told[1:])
    assert told[0] == "serve"
    assert (options.host, options.thinking, options.drafter) == ("::1", True, "/d")
    assert (options.ranks, options.dense, options.kv) == ((2, "q4", "fp8") if profile == "two-gpu" else (1, "bf16", "bf16"))


def test_further_arguments_and_variables_reach_the_engine_as_given(tmp_path: Path) -> None:
    given = {
        "PROFILE": "embedded",
        "ENGINE_ARGUMENTS": "--max-queued 7 --loop 'plain'",
        "ENGINE_VARIABLES": "OMP_NUM_THREADS=2 NCCL_X='a b'",
    }
    told = config.load(tmp_path, {"HOME": str(tmp_path), **given})
    options = ServingOptions.from_argv(engine_words(told, PLACES, host="127.0.0.1")[1:])
    assert (options.max_queued, options.loop) == (7, "plain")
    assert engine_variables(told) == {"OMP_NUM_THREADS": "2", "NCCL_X": "a b"}


def test_memory_keys_and_proxies_reach_the_engine(tmp_path: Path) -> None:
    told = config.load(tmp_path, {"HOME": str(tmp_path), "TRUSTED_PROXY": "10.0.0.1,10.1.0.0/16"})
    options = ServingOptions.from_argv(engine_words(told, PLACES | {"key": "/key"}, host="0.0.0.0")[1:])
    assert (options.memory_reserve_gib, options.kv_pool_gib, options.auth) == (6.0, 3.75, "auto")
    assert (options.api_key_file, options.trusted_proxy) == (Path("/key"), ("10.0.0.1", "10.1.0.0/16"))


def test_gpus_that_cannot_talk_directly_are_told_so(tmp_path: Path) -> None:
    off = engine_variables(config.load(tmp_path, {"HOME": str(tmp_path), "P2P": "off"}))
    on = engine_variables(config.load(tmp_path, {"HOME": str(tmp_path)}))
    assert off == {**on, "NCCL_P2P_DISABLE": "1"}
    assert (on["NCCL_MIN_NCHANNELS"], on["NCCL_MAX_NCHANNELS"], on["NCCL_SOCKET_IFNAME"]) == ("4", "4", "lo")
