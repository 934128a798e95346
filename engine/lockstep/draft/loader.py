"""From serving options to a drafter, ready to be asked."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.config.serving import ServingOptions
from lockstep.draft.cost import RowCosts
from lockstep.draft.lineup import Lineup
from lockstep.draft.policy import Policy
from lockstep.draft.stream import Drafter


@dataclass(frozen=True, slots=True)
class Drafting:
    """A drafter and the most drafts a window of it may have. `policy` tells whether step times must be known before serving."""

    drafter: Drafter
    max_drafts: int
    policy: Policy


def load_drafting(options: ServingOptions) -> Drafting:
    """The drafter of `options`. Raises PolicyError for a policy word that means nothing."""
    if options.drafter == "none":
        return Drafting(Drafter(), 0, Policy(0))
    policy = Policy(0)
    drafter = Lineup(Drafter(), policy, options.copy_tokens, RowCosts())
    return Drafting(drafter, max(policy.most, options.copy_tokens), policy)
