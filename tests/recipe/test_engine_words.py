"""What the engine is told of the settings that decide its bits and its drafts."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from lockstep.config.serving import ServingOptions
from recipe import config
from recipe.launching import engine_words

PLACES = {"model": "/m", "drafter": "/d", "key": ""}


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
