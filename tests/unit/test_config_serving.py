"""Serving options: their command line both ways, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.config.serving import AUTHS, DENSE_FORMS, EFFORTS, KV_FORMS, LOOPS, OptionError, ServingOptions

paths = st.sampled_from([Path("m"), Path("/a b/c"), Path("x.y")])
options = st.builds(
    ServingOptions,
    model=paths,
    drafter=st.sampled_from(["none", "copy", "mtp", "/a b/c"]),
    draft_policy=st.sampled_from(["auto", "fnc7:0.3:2"]),
    copy_tokens=st.integers(0, 31),
    draft_noise=st.floats(0, 10),
    draft_edge=st.floats(0, 10),
    host=st.sampled_from(["127.0.0.1", "::1"]),
    port=st.integers(1, 65535),
    name=st.sampled_from(["glm-5.3-flash", "ü"]),
    context=st.integers(64, 4096),
    parallel=st.integers(1, 32),
    max_tokens=st.integers(1, 1 << 20),
    thinking=st.booleans(),
    reasoning_effort=st.sampled_from(EFFORTS),
    api_key_file=st.just(Path("keys")),
    auth=st.sampled_from(AUTHS),
    trusted_proxy=st.sampled_from([(), ("10.0.0.1",), ("10.0.0.0/8", "::1")]),
    cors_origin=st.sampled_from([(), ("*",), ("http://a.example:3000", "vscode-webview://abc")]),
    state_hashes=st.booleans(),
    device=st.sampled_from(["cpu", "cuda"]),
    pool_tokens=st.just(0) | st.integers(4096, 1 << 30),
    prompt_slice=st.integers(0, 1 << 16),
    max_queued=st.integers(0, 1 << 20),
    max_queued_tokens=st.integers(0, 1 << 40),
    dense=st.sampled_from(DENSE_FORMS),
    kv=st.sampled_from(KV_FORMS),
    loop=st.sampled_from(LOOPS),
    kept_gib=st.floats(0, 4096),
    kept_grid=st.integers(64, 1 << 20),
    kept_share=st.floats(0, 1),
    spill_dir=st.none() | paths,
    spill_gib=st.floats(0, 1 << 20),
)


@given(options)
def test_the_command_line_gives_the_options_back(one: ServingOptions):
    assert ServingOptions.from_argv(one.to_argv()) == one


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--auth", "some"], "--auth some; needed: auto or key or open"),
        (["--auth", "key"], "without --api-key-file"),
        (["--trusted-proxy", "proxy"], "--trusted-proxy proxy; needed: an address"),
        (["--cors-origin", "http://a.example/"], "--cors-origin http://a.example/; needed: scheme, host and port"),
        (["--cors-origin", "a.example"], "--cors-origin a.example; needed: scheme"),
        (["--port", "0"], "--port 0; needed: 1 to 65535"),
        (["--context", "63"], "--context 63; needed: 64 to"),
        (["--parallel", "33"], "--parallel 33; needed: 1 to 32"),
        (["--max-tokens", "0"], "--max-tokens 0"),
        (["--reasoning-effort", "some"], "needed: one of none, minimal"),
        (["--device", "tpu"], "needed: cpu or cuda"),
        (["--dense", "q8"], "--dense q8; needed: bf16 or fp8 or q4"),
        (["--kept-gib", "-1"], "--kept-gib -1.0; needed: 0 to 4096"),
        (["--kept-grid", "63"], "--kept-grid 63; needed: 64 to"),
        (["--kept-share", "50"], "--kept-share 50.0; needed: 0 to 1"),
        (["--kv", "q4"], "--kv q4; needed: bf16 or fp8"),
        (["--context", "4096", "--pool-tokens", "4095"], "--pool-tokens 4095 is less than one window; needed: --context 4096"),
    ],
)
def test_a_value_out_of_range_is_named_with_its_flag(argv: list[str], words: str):
    with pytest.raises(OptionError, match=words):
        ServingOptions.from_argv(["--model", "m", *argv])


def test_flags_are_never_guessed_from_a_prefix(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        ServingOptions.from_argv(["--model", "m", "--para", "2"])
    assert caught.value.code == 2
    assert "--para" in capsys.readouterr().err


def test_the_default_pool_holds_a_full_window_in_every_slot():
    assert ServingOptions(Path("m"), context=100, parallel=3).shared_tokens == 3 * 128
    assert ServingOptions(Path("m"), context=100, parallel=3, pool_tokens=130).shared_tokens == 192


def test_a_gpu_reads_prompts_in_longer_slices_unless_told():
    slices = [ServingOptions(Path("m"), device=device, prompt_slice=told).slice_tokens for device in ("cpu", "cuda") for told in (0, 64)]
    assert slices == [256, 64, 2048, 64]
