"""From serving options to a drafter, ready to be asked."""

from dataclasses import dataclass
from pathlib import Path

import torch

from lockstep.config.serving import ServingOptions
from lockstep.draft.cost import RowCosts
from lockstep.draft.dflash2 import BlockDrafts
from lockstep.draft.lineup import Lineup
from lockstep.draft.mtp import MtpDrafter
from lockstep.draft.policy import Policy, parse_policy
from lockstep.draft.stream import Drafter
from lockstep.layers.params import Params
from lockstep.model.dflash2 import BlockDrafter, Target
from lockstep.model.glm import GlmModel
from lockstep.model.mtp import MtpLayer
from lockstep.weights import Checkpoint
from lockstep.weights.dense import coded_weights
from lockstep.weights.drafter import DrafterFolder

# As deep as pays by what steps cost on this machine, measured at load.
MTP_POLICY, BLOCK_POLICY = "cost3", "cost7"


@dataclass(frozen=True, slots=True)
class Drafting:
    """A drafter, the most drafts a window of it may have, and what steps cost if its policy needs that to be known before serving."""

    drafter: Drafter
    max_drafts: int
    unknown_costs: RowCosts | None = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a drafter is built around: the target and the sizes of its memory. Ids from `vocabulary` on are padding."""

    checkpoint: Checkpoint
    model: GlmModel
    vocabulary: int
    pages: int
    slots: int


def load_drafting(options: ServingOptions, around: Surroundings) -> Drafting:
    """The drafter of `options`. Raises PolicyError for a policy word that means nothing, and the readers' own errors."""
    # What a rank measures differs from rank to rank, and depths must not.
    costs = RowCosts(around.model.exchange.agree)
    if options.drafter == "none":
        return Drafting(Drafter(), 0)
    if options.drafter == "copy":
        return Drafting(Lineup(Drafter(), Policy(0), options.copy_tokens, costs), options.copy_tokens)
    block = options.drafter != "mtp"
    word = (BLOCK_POLICY if block else MTP_POLICY) if options.draft_policy == "auto" else options.draft_policy
    policy = parse_policy(word, block)
    neural = _block(options, around, policy) if block else _mtp(options, around, policy)
    drafter = Lineup(neural, policy, options.copy_tokens, costs)
    return Drafting(drafter, max(policy.most, options.copy_tokens), costs if policy.by_cost else None)


def _mtp(options: ServingOptions, around: Surroundings, policy: Policy) -> Drafter:
    model, text = around.model, around.checkpoint.config.text
    weights = coded_weights(around.checkpoint, options.dense, model.device)
    memory = (around.pages, around.slots, model.device, model.dtype, model.exchange, options.kv)
    layer = MtpLayer.load(weights, text, model.embedding, *memory)
    return MtpDrafter(layer, text.num_hidden_layers, model.head, around.vocabulary, policy, options.draft_noise)


def _block(options: ServingOptions, around: Surroundings, policy: Policy) -> Drafter:
    model, folder = around.model, DrafterFolder(Path(options.drafter), around.checkpoint.config.text)
    params = Params(folder, "", torch.device(model.device), model.dtype)
    with torch.inference_mode():
        drafter = BlockDrafter(params, folder.config, Target(model.embedding, model.head, around.vocabulary), around.slots)
    return BlockDrafts(drafter, policy, options.draft_noise, options.draft_edge)
