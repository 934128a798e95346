"""Trains the byte-level BPE tokenizer of a tiny checkpoint and writes it in the published file layout.

Knows nothing of where the texts come from. The same texts in the same order give the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from checkpoints.sizes import HIDDEN_TOKENS, SPECIAL_TOKENS, Sizes

# Letters with their leading space, single digits, runs of signs, spaces. Single digits make sums and counting learnable.
_PIECES = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def train_tokenizer(texts: Iterable[str], size: Sizes) -> str:
    """`tokenizer.json` as text: `size.bpe_tokens` byte-level BPE tokens, then the special tokens in the published order.

    Raises ValueError if the texts are too few or too plain to give that many tokens.
    """
    # exact: one thread, so that counts are merged in one order.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_PIECES), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size.bpe_tokens, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=[]
    )
    tokenizer.train_from_iterator(texts, trainer)
    found = tokenizer.get_vocab_size()
    if found != size.bpe_tokens:
        raise ValueError(f"tokenizer: the texts gave {found} tokens, needed {size.bpe_tokens}; give more varied texts")
    for text in SPECIAL_TOKENS:
        tokenizer.add_tokens([AddedToken(text, special=text in HIDDEN_TOKENS, normalized=False)])
        if tokenizer.token_to_id(text) != size.token(text):
            raise ValueError(f"tokenizer: {text} got id {tokenizer.token_to_id(text)}, needed {size.token(text)}")
    return tokenizer.to_str(pretty=False)


def tokenizer_config(size: Sizes) -> dict[str, Any]:
    """`tokenizer_config.json`. No token is added in front of or behind a text: the template writes them."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": {
            str(size.token(text)): {
                "content": text,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": text in HIDDEN_TOKENS,
            }
            for text in SPECIAL_TOKENS
        },
        "additional_special_tokens": list(HIDDEN_TOKENS),
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": size.context,
        "padding_side": "left",
        "remove_space": False,
    }
