"""Trains the embedded checkpoint: `python -m embedded.make.train --stage main|finish|drafter|polish --work DIR`.

`main` trains everything from a seed; `finish` encodes the experts in EXL3 and trains what is left around them, with the chained MTP
layer and the DFlash2 drafter. Two further stages begin from a written checkpoint, whose folder is their `--work`: `drafter` trains a
drafter anew, `polish` the trunk without its experts a little more on short documents, which the CPU can do. Each fits ten minutes of one
GPU. `embedded.make.export` writes the checkpoint from what any but the first left.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from embedded.make import state
from embedded.make.batch import Batch, Source
from embedded.make.data.encoding import Encoder
from embedded.make.drafting import MTP_DEPTH, block_loss, drafter_of, measure
from embedded.make.feed import Feed
from embedded.make.layers import Weights
from embedded.make.model import Model
from embedded.make.polish import ShortFeed
from embedded.make.quantise import decoded_experts, encode_experts
from embedded.make.state import Log
from embedded.make.stored import stored_parts
from embedded.make.trainer import Stage
from embedded.make.weights import TRUNK, initial
from safetensors.torch import load_file

from checkpoints.sizes import Sizes, model_config
from lockstep.config.model import ModelConfig, parse_model_config

FIRST_ROUND = 12_000_000
MTP_FROM = 0.3
DRAFTER_PEAK = 5e-3


@dataclass(frozen=True, slots=True)
class Options:
    """The command line. `work` keeps tensors between stages, `scratch` the shards."""

    stage: str
    work: Path
    out: Path
    scratch: Path
    checkpoint: Path
    minutes: float
    seed: int
    device: str
    tokens: int
    workers: int
    round_tokens: int
    first_tokens: int
    peak: float
    compiled: bool
    eval: int
    length: int
    long_length: int


def options() -> Options:
    """Of the process's arguments."""
    parser = argparse.ArgumentParser(prog="embedded.make.train", description=__doc__)
    parser.add_argument("--stage", choices=tuple(STAGES), required=True)
    parser.add_argument("--work", type=Path, required=True, help="folder of the stage before")
    parser.add_argument("--out", type=Path, default=None, help="folder of this stage; --work if left out")
    parser.add_argument("--scratch", type=Path, default=Path(".cache/train/shards"))
    parser.add_argument("--checkpoint", type=Path, default=Path("embedded"), help="folder with tokenizer and template")
    parser.add_argument("--minutes", type=float, default=7.5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tokens", type=int, default=65536, help="tokens of a step")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--round-tokens", type=int, default=80_000_000)
    parser.add_argument("--first-tokens", type=int, default=FIRST_ROUND)
    parser.add_argument("--peak", type=float, default=5e-3)
    parser.add_argument("--eager", dest="compiled", action="store_false")
    parser.add_argument("--eval", type=int, default=24, help="held-out prompts of each task at the end")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--long-length", type=int, default=8192)
    found = vars(parser.parse_args())
    return Options(**{**found, "out": found["out"] or found["work"]})


def feed_of(o: Options) -> Source:
    """The stage's source of batches, ready to be asked."""
    if o.stage == "polish":
        return ShortFeed(Encoder.of(o.checkpoint), o.device, o.tokens, o.length, o.seed)
    feed = Feed(
        o.scratch, o.checkpoint, o.device, o.seed * 1000, o.tokens, o.length, o.long_length, workers=o.workers, round_tokens=o.round_tokens
    )
    feed.start(o.first_tokens)
    return feed


def trainable(weights: Weights, names: set[str] | None = None) -> Weights:
    """The tensors a stage trains; all others stop asking for gradients."""
    for name, value in weights.items():
        value.requires_grad_("correction_bias" not in name and (names is None or name in names))
    return {name: value for name, value in weights.items() if value.requires_grad}


def train_main(o: Options, config: ModelConfig, feed: Source, log: Log) -> None:
    weights: Weights = {name: value.detach().to(o.device) for name, value in initial(config, o.seed).items()}
    stage = _stage(o, config, feed, log, weights)
    stage.groups = [(trainable(weights), o.peak)]
    stage.noise_from = 0.5
    began = log.seconds

    def objective(batch: Batch, _: int) -> torch.Tensor:
        return stage.language_loss(batch, int(log.seconds - began > MTP_FROM * o.minutes * 60))[0]

    steps = stage.loop(objective)
    stage.save()
    log.write(saved=str(o.out), steps=steps)
    stage.evaluate(Encoder.of(o.checkpoint), o.eval)


def train_finish(o: Options, config: ModelConfig, feed: Source, log: Log) -> None:
    weights = state.load(o.work, "model", o.device)
    stage = _stage(o, config, feed, log, weights)
    coded, error = encode_experts(weights, config, o.seed)
    log.write(encoded=len(coded), relative_error=error)
    state.save(o.out, "experts", coded)
    drafter = drafter_of(stage.model, o.device, o.seed)
    stage.groups = [(trainable(weights, {name for name in weights if ".experts." not in name}), o.peak), (drafter.weights, DRAFTER_PEAK)]
    stage.long_from = 0.0

    def objective(batch: Batch, _: int) -> torch.Tensor:
        loss, trunk, agrees = stage.language_loss(batch, MTP_DEPTH, drafter.config.target_layer_ids)
        block = block_loss(stage.model, drafter, batch, trunk.taps, agrees)
        stage.means.add(block=block)
        return loss + block

    steps = stage.loop(objective)
    state.save(o.out, "rest", {name: value for name, value in weights.items() if ".experts." not in name})
    state.save(o.out, "drafter", drafter.weights)
    log.write(saved=str(o.out), steps=steps)
    encoder = Encoder.of(o.checkpoint)
    measure(stage, drafter, encoder, o.eval)
    stage.evaluate(encoder, o.eval)


def train_drafter(o: Options, config: ModelConfig, feed: Source, log: Log) -> None:
    rest, coded = stored_parts(o.work)
    weights = {name: value.to(o.device) for name, value in (rest | decoded_experts(coded, config)).items()}
    trainable(weights, set())
    stage = _stage(o, config, feed, log, weights)
    drafter = drafter_of(stage.model, o.device, o.seed)
    stage.groups, stage.long_from, stage.balances = [(drafter.weights, DRAFTER_PEAK)], 0.0, False

    def objective(batch: Batch, _: int) -> torch.Tensor:
        with torch.no_grad():
            _loss, trunk, agrees = stage.language_loss(batch, 0, drafter.config.target_layer_ids)
        block = block_loss(stage.model, drafter, batch, trunk.taps, agrees)
        stage.means.add(block=block)
        return block

    steps = stage.loop(objective)
    for stem, tensors in (("rest", rest), ("experts", coded), ("drafter", drafter.weights)):
        state.save(o.out, stem, tensors)
    log.write(saved=str(o.out), steps=steps)
    measure(stage, drafter, Encoder.of(o.checkpoint), o.eval)


def train_polish(o: Options, config: ModelConfig, feed: Source, log: Log) -> None:
    rest, coded = stored_parts(o.work)
    weights = {name: value.to(o.device) for name, value in (rest | decoded_experts(coded, config)).items()}
    stage = _stage(o, config, feed, log, weights)
    next_layer = f"{TRUNK}layers.{config.text.num_hidden_layers}."
    stage.groups = [(trainable(weights, {name for name in rest if name.startswith(TRUNK) and not name.startswith(next_layer)}), o.peak)]
    # a row that few gradients reach must not move as far as the others: it would forget its rare word
    stage.long_from, stage.balances, stage.warm_steps, stage.adam_eps = 2.0, False, 20, 1e-4
    steps = stage.loop(lambda batch, _: stage.language_loss(batch, 0)[0])
    drafter = load_file(o.work / "drafter" / "model.safetensors")
    for stem, tensors in (("rest", {name: weights[name] for name in rest}), ("experts", coded), ("drafter", drafter)):
        state.save(o.out, stem, tensors)
    log.write(saved=str(o.out), steps=steps)


def _stage(o: Options, config: ModelConfig, feed: Source, log: Log, weights: Weights) -> Stage:
    dtype = torch.bfloat16 if o.device == "cuda" else torch.float32
    return Stage(Model(config, weights, dtype, o.compiled), feed, log, o.out, o.minutes, [])


STAGES = {"main": train_main, "finish": train_finish, "drafter": train_drafter, "polish": train_polish}


def main() -> None:
    o = options()
    torch.manual_seed(o.seed)
    torch.set_float32_matmul_precision("high")
    config, log = parse_model_config(model_config(Sizes())), Log(o.out)
    log.write(stage=o.stage, device=torch.cuda.get_device_name() if o.device == "cuda" else "cpu", torch=torch.__version__)
    feed = feed_of(o)
    log.write(first_round_s=log.seconds)
    try:
        STAGES[o.stage](o, config, feed, log)
    finally:
        feed.stop()


if __name__ == "__main__":
    main()
