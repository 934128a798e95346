"""The seeded generator of everything the embedded model learns. All text and pictures are made here; nothing is downloaded.

`sample(rng, split)` yields conversations, `corpus(seed)` the tokenizer's texts, `shards.write` packed rows for the trainer.
"""

from embedded.make.data.conversation import GIVEN, REPLY, Call, Media, Sample, ToolFrame, Turn, render
from embedded.make.data.mixture import corpus, long_sample, sample
from embedded.make.data.split import is_held_out

__all__ = ["GIVEN", "REPLY", "Call", "Media", "Sample", "ToolFrame", "Turn", "corpus", "is_held_out", "long_sample", "render", "sample"]
