"""One rank's share of the model: which heads, columns, experts and vocabulary rows it computes. Numbers only, standard library only.

The plan: heads of both kinds of attention, columns of dense and shared feed-forward parts and rows of the head are split evenly. Routed
experts are split by columns too, in whole Hadamard blocks; where their width does not allow it each rank takes whole experts.
"""

from dataclasses import dataclass

from lockstep.config.fields import ConfigError
from lockstep.config.model import TextConfig

EXPERT_UNIT = 128


@dataclass(frozen=True, slots=True)
class Share:
    """Rank `rank` of `ranks`. Every split is even and contiguous, in rank order."""

    rank: int = 0
    ranks: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.ranks:
            raise ValueError(f"rank {self.rank} of {self.ranks}; needed: 0 to {self.ranks - 1}")

    def part(self, count: int) -> int:
        """How many of `count` this rank has."""
        return count // self.ranks

    def span(self, count: int) -> range:
        """Which of `count` this rank has."""
        own = self.part(count)
        return range(self.rank * own, (self.rank + 1) * own)

    def splits_experts(self, config: TextConfig) -> bool:
        """True if each rank has a part of every routed expert, False if it has whole experts."""
        return config.moe_intermediate_size % (EXPERT_UNIT * self.ranks) == 0

    def experts(self, config: TextConfig) -> range:
        """Routed experts of which this rank has something."""
        whole = range(config.n_routed_experts)
        return whole if self.ranks == 1 or self.splits_experts(config) else self.span(config.n_routed_experts)

    def expert_width(self, config: TextConfig) -> int:
        """Columns this rank has of each of its `experts`."""
        return self.part(config.moe_intermediate_size) if self.splits_experts(config) else config.moe_intermediate_size

    def check(self, config: TextConfig) -> None:
        """Raise ConfigError naming the first size that does not divide evenly."""
        sizes = {
            "num_attention_heads": config.num_attention_heads,
            "linear_attn_config.num_heads": config.linear_num_heads,
            "intermediate_size": config.intermediate_size,
            "moe_intermediate_size * n_shared_experts": config.shared_intermediate_size,
            "vocab_size": config.vocab_size,
        }
        if not self.splits_experts(config):
            sizes["n_routed_experts"] = config.n_routed_experts
        for name, size in sizes.items():
            if size % self.ranks:
                raise ConfigError(f"{name} is {size}; needed: a multiple of --ranks {self.ranks}, or fewer ranks")


WHOLE = Share()
