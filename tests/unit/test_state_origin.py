"""States are taken over by an engine that would make the same ones, and by no other."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

import lockstep
from lockstep.config.serving import ServingOptions
from lockstep.run import origin as module
from lockstep.run.origin import origin


@pytest.fixture
def options(tmp_path: Path) -> ServingOptions:
    for folder in ("model", "drafter"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model.safetensors").write_bytes(b"weights")
    return ServingOptions(tmp_path / "model", drafter=str(tmp_path / "drafter"))


def test_what_decides_a_states_bits_or_shape_changes_its_origin(options: ServingOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen = {origin(options, "build"), origin(options, "other build"), origin(replace(options, drafter="mtp"), "build")}
    assert len(seen) == 3
    for path in (tmp_path / "model", tmp_path / "drafter"):
        os.utime(path / "model.safetensors", (1, 1))
        seen.add(origin(options, "build"))
    assert len(seen) == 5
    source = tmp_path / "source"
    source.mkdir()
    (source / "__init__.py").write_text("")
    monkeypatch.setattr(lockstep, "__file__", str(source / "__init__.py"))
    seen.add(origin(options, "build"))
    (source / "layer.py").write_text("x = 1")
    seen.add(origin(options, "build"))
    monkeypatch.setattr(module, "_processor", lambda _device: "another processor")
    seen.add(origin(options, "build"))
    monkeypatch.setenv("OPENBLAS_CORETYPE", f"other than {os.environ.get('OPENBLAS_CORETYPE')}")
    seen.add(origin(options, "build"))
    assert len(seen) == 9


def test_what_cannot_reach_a_states_bits_leaves_it(options: ServingOptions):
    other = replace(options, port=1, parallel=9, kept_gib=1.0, draft_policy="3", prompt_slice=64, context=128)
    assert origin(other, "build") == origin(options, "build")
