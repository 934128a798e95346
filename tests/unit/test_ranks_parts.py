"""Ranks without processes: shares add up to the whole, followers refuse what rank 0 does not run, the watchdog barks once and in time."""

from __future__ import annotations

import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fixtures.random_model import RandomWeights, text_config
from lockstep.config.fields import ConfigError
from lockstep.config.serving import ServingOptions
from lockstep.config.share import Share
from lockstep.core.plan import Admission, PromptSlice, StepPlan, StepResult
from lockstep.core.rank_messages import Begin, HashState, Ran, Run
from lockstep.core.types import EngineRequest, Sampling
from lockstep.draft.cost import RowCosts
from lockstep.kernels.exl3 import Exl3Matrix, decode_outer
from lockstep.run.exchange import TorchExchange, in_rank_order
from lockstep.run.placement import place_rank
from lockstep.run.ranks import Ranks
from lockstep.run.settings import RankMismatch, compare_settings, rank_settings, settings_digest
from lockstep.run.team import Follower, LeadingRunner
from lockstep.run.watchdog import Watchdog
from lockstep.weights import WeightError
from lockstep.weights.split import SplitWeights

LAYER = "model.language_model.layers.3."
PLAN = StepPlan(
    (), (Admission(EngineRequest("a", (1, 2), Sampling(seed=2**64 - 1), 4, frozenset({7, 5})), 0, (0,)),), (PromptSlice("a", 0, 2, True),)
)


class Whole:
    """One stored matrix or tensor, whatever is asked for by its whole size."""

    def __init__(self, coded: bool) -> None:
        self.weights = RandomWeights(1, coded_experts=coded)
        self.found: dict[str, Any] = {}

    def tensor(self, name: str, shape: tuple[int, ...]) -> Any:
        return self.found.setdefault(f"{name} {shape}", self.weights.tensor(name, shape))

    def matrix(self, prefix: str, k: int, n: int) -> Any:
        return self.found.setdefault(f"{prefix} {k} {n}", self.weights.matrix(prefix, k, n))


def expanded(matrix: Exl3Matrix) -> torch.Tensor:
    return decode_outer(matrix.trellis, matrix.suh, matrix.svh, matrix.codebook)


def coded(matrix: object) -> Exl3Matrix:
    assert isinstance(matrix, Exl3Matrix)
    return matrix


def plain(matrix: object) -> torch.Tensor:
    assert isinstance(matrix, torch.Tensor)
    return matrix


def shares(whole: Whole, splits_experts: bool = True) -> list[SplitWeights]:
    return [SplitWeights(whole, Share(rank, 2), splits_experts) for rank in range(2)]


def test_column_shares_of_an_exl3_expert_are_the_columns_of_the_whole_bit_for_bit():
    whole, name = Whole(coded=True), f"{LAYER}mlp.experts.0.gate_proj"
    parts = [coded(share.matrix(name, 128, 256)) for share in shares(whole)]
    assert all(part.trellis.is_contiguous() for part in parts)
    assert torch.equal(torch.cat([expanded(part) for part in parts], 1), expanded(whole.matrix(name, 128, 512)))


def test_row_shares_of_an_exl3_expert_are_the_rows_of_the_whole_bit_for_bit():
    whole, name = Whole(coded=True), f"{LAYER}mlp.experts.0.down_proj"
    parts = [coded(share.matrix(name, 256, 128)) for share in shares(whole)]
    assert torch.equal(torch.cat([expanded(part) for part in parts]), expanded(whole.matrix(name, 512, 128)))


def test_the_bias_of_a_matrix_split_by_inputs_is_added_once():
    whole, name = Whole(coded=True), f"{LAYER}mlp.experts.0.down_proj"
    stored = whole.matrix(name, 256, 128)
    whole.found[f"{name} 256 128"] = Exl3Matrix(stored.trellis, stored.suh, stored.svh, "mcg", torch.ones(128).half())
    assert [coded(share.matrix(name, 128, 128)).bias is None for share in shares(whole)] == [False, True]


def test_a_cut_through_a_hadamard_block_is_refused():
    with pytest.raises(WeightError, match=r"outputs are 64 to 128 of an EXL3 matrix; needed: multiples of 128"):
        shares(Whole(coded=True))[1].matrix(f"{LAYER}mlp.experts.0.up_proj", 128, 64)


@pytest.mark.parametrize(
    ("name", "axis"),
    [("self_attn.q_proj", 0), ("self_attn.kv_b_proj", 0), ("self_attn.o_proj", 1), ("mlp.shared_experts.down_proj", 1), ("mlp.up_proj", 0)],
)
def test_plain_shares_laid_side_by_side_are_the_whole(name: str, axis: int):
    whole = Whole(coded=False)
    parts = [plain(share.matrix(LAYER + name, *((48, 64) if axis else (96, 32)))) for share in shares(whole)]
    assert torch.equal(torch.cat(parts, axis), whole.matrix(LAYER + name, 96, 64))


def test_names_outside_the_plan_are_whole_on_every_rank():
    whole, embedding = Whole(coded=False), "model.language_model.embed_tokens"
    for share in shares(whole, splits_experts=False):
        for name in (f"{LAYER}self_attn.q_a_proj", f"{LAYER}self_attn.indexer.wq_b", f"{LAYER}mlp.experts.3.up_proj", "visual.q_proj"):
            assert torch.equal(plain(share.matrix(name, 32, 64)), whole.matrix(name, 32, 64))
        assert torch.equal(share.tensor(f"{embedding}.weight", (96, 8)), whole.tensor(f"{embedding}.weight", (96, 8)))
    heads = [plain(share.matrix(embedding, 8, 48)) for share in shares(whole)]
    assert torch.equal(torch.cat(heads), whole.matrix(embedding, 8, 96))


def test_a_size_that_ranks_do_not_divide_is_named():
    with pytest.raises(ConfigError, match="num_attention_heads is 3; needed: a multiple of --ranks 2"):
        Share(0, 2).check(text_config(num_attention_heads=3))
    with pytest.raises(ConfigError, match="n_routed_experts is 7"):
        Share(0, 2).check(text_config(n_routed_experts=7))
    Share(0, 2).check(text_config(n_routed_experts=7, moe_intermediate_size=256))


class Echo:
    """A runner that chooses what it is told and remembers its plans."""

    def __init__(self, token: int = 5) -> None:
        self.plans: list[StepPlan] = []
        self.token = token

    def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        return StepResult({"a": (self.token,)})

    def state_hash(self, request_id: str) -> str:
        return f"hash of {request_id} with {self.token}"


class Wire:
    """Links that hand each message to a follower at once."""

    def __init__(self, follower: Follower) -> None:
        self.follower, self.told = follower, 0
        self.answers: list[str] = []
        self.last = Ran(1, 0, "")

    def tell(self, message: Run | HashState) -> None:
        self.told += 1
        if isinstance(message, Run):
            self.last = self.follower.run(message)
        else:
            self.answers.append(self.follower.hash(message).state_hash)

    def hashes(self, request_id: str) -> list[str]:
        return [self.answers.pop()]

    def ran(self) -> list[Ran]:
        return [self.last]


def test_a_follower_runs_the_very_plan_and_the_hash_covers_every_rank():
    first, second = Echo(), Echo()
    leader = LeadingRunner(first, Wire(Follower(second, 1, "s")), "s")
    leader.execute(PLAN)
    leader.execute(StepPlan(releases=("a",)))
    assert second.plans == first.plans == [PLAN, StepPlan(releases=("a",))]
    assert [(ran.rank, ran.step) for ran in leader.ran()] == [(0, 2), (1, 2)]
    assert len({ran.chosen for ran in leader.ran()}) == 1
    combined = leader.state_hash("a")
    second.token = 6
    assert len(combined) == 64
    assert leader.state_hash("a") != combined


def test_an_empty_plan_is_told_to_nobody():
    wire = Wire(Follower(Echo(), 1, "s"))
    assert LeadingRunner(Echo(), wire, "s").execute(StepPlan()) == StepResult()
    assert wire.told == 0


def test_a_follower_that_chose_other_tokens_says_so_before_the_next_step():
    second = Echo(token=6)
    leader = LeadingRunner(Echo(token=5), Wire(Follower(second, 1, "s")), "s")
    leader.execute(PLAN)
    first, other = leader.ran()
    assert first.step == other.step == 1
    assert first.chosen != other.chosen
    with pytest.raises(RankMismatch, match="rank 1 and rank 0 chose other tokens by step 1"):
        leader.execute(PLAN)
    assert len(second.plans) == 1


def test_a_follower_refuses_a_plan_of_other_settings_or_another_step():
    second = Echo()
    with pytest.raises(RankMismatch, match="plan and settings of step 1 have digest"):
        LeadingRunner(Echo(), Wire(Follower(second, 1, "s")), "t").execute(PLAN)
    with pytest.raises(RankMismatch, match="was told step 2 after step 0; needed: step 1"):
        Follower(second, 1, "s").run(Run(2, b"", "", ""))
    assert not second.plans


def test_settings_that_differ_are_listed_by_name():
    one = rank_settings(ServingOptions(Path("m"), ranks=2), "abc", "1")
    two = rank_settings(ServingOptions(Path("m"), ranks=2, context=1024), "abd", "1")
    compare_settings(1, one, dict(one))
    with pytest.raises(RankMismatch, match=r"build digest: abd here, abc on rank 0; context: 1024 here, 16384 on rank 0"):
        compare_settings(1, two, one)
    assert settings_digest(one) != settings_digest(two)


@pytest.mark.parametrize("has", [("all_gather_single", "all_gather_into_tensor"), ("all_gather_into_tensor",)], ids=["2.13", "2.11"])
def test_the_library_is_asked_by_the_name_its_release_has(monkeypatch: pytest.MonkeyPatch, has: tuple[str, ...]):
    asked = []

    def gather(name: str, every: Tensor, own: Tensor) -> None:
        asked.append(name)
        every.copy_(own.repeat(2, 1))

    for name in ("all_gather_single", "all_gather_into_tensor"):
        monkeypatch.delattr(torch.distributed, name)
        if name in has:
            monkeypatch.setattr(torch.distributed, name, partial(gather, name), raising=False)
    assert TorchExchange(Share(0, 2), "cpu").add(torch.ones(1, 4)).tolist() == [[2.0] * 4]
    assert asked == [has[0]]


PARTING = """
import pathlib, sys, time
from lockstep.channel.child import ChildChannel
from lockstep.core.rank_messages import Leave
from lockstep.run.ranks import orders
here = pathlib.Path(sys.argv[1])
for message in orders(ChildChannel.from_fd(int(sys.argv[-1]))):
    if isinstance(message, Leave):
        (here / "rank 1 parts").touch()
        while not (here / "rank 0 parts").exists():
            time.sleep(0.01)
        break
"""


def test_ranks_leave_an_exchange_that_no_one_can_leave_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "engine"))

    def part_ways() -> None:
        (tmp_path / "rank 0 parts").touch()
        end_s = time.monotonic() + 30
        while not (tmp_path / "rank 1 parts").exists():
            assert time.monotonic() < end_s, "the other rank was never told"
            time.sleep(0.01)

    ended: list[str] = []
    ranks = Ranks([sys.executable, "-c", PARTING, str(tmp_path)], 2, Begin("nowhere", {}), ended.append)
    ranks.leave(part_ways)
    assert ranks.cause_of_death(0) == ""
    assert [link.process.returncode for link in ranks._links] == [0]
    assert ended == []


def test_the_watchdog_barks_once_about_a_step_that_does_not_end():
    heard: list[str] = []
    barked = threading.Event()

    def bark(words: str) -> None:
        heard.append(words)
        barked.set()

    watchdog = Watchdog(0.2, bark)
    with watchdog.watching("step 1"):
        assert barked.wait(5)
        time.sleep(0.5)
    watchdog.close()
    assert heard == ["step 1 did not end within 0.2 s (--step-timeout): a rank hangs or is too slow"]


def test_many_short_steps_and_idle_time_keep_the_watchdog_quiet():
    heard: list[str] = []
    watchdog = Watchdog(2.0, heard.append)
    for _ in range(40):
        with watchdog.watching("step"):
            time.sleep(0.06)
    time.sleep(2.5)
    watchdog.close()
    assert heard == []


def test_costs_follow_what_the_ranks_agreed_on():
    costs = RowCosts(lambda seconds: 0.007)
    costs.observe(1, 1.0)
    assert costs.step_ms(1) == pytest.approx(7.0)


def test_partial_sums_are_added_in_rank_order_in_fp32_and_rounded_once():
    parts = torch.randn(3, 8, 64, generator=torch.Generator().manual_seed(4))
    wanted = parts[0] + parts[1] + parts[2]
    assert torch.equal(in_rank_order(parts), wanted)
    assert not torch.equal(parts[2] + parts[1] + parts[0], wanted), "the order must matter here"
    short = parts.bfloat16()
    assert torch.equal(in_rank_order(short), (short[0].float() + short[1].float() + short[2].float()).bfloat16())


def test_a_rank_computes_with_one_thread():
    torch.set_num_threads(2)
    try:
        place_rank(0)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(1)
