"""xgrammar behind the protocol: the only importer of it, and with it of torch. Knows no requests."""

from __future__ import annotations

import json
import zlib

import numpy as np
import xgrammar
from numpy.typing import NDArray

from grammars.protocol import Form, GrammarError, Vocabulary
from lockstep.core.recent import Recent

CACHE_BYTES = 256 << 20
# Reading one back holds up a step, for half a second at this size.
MAX_BYTES = 64 << 20
_ROW_BITS = 32


class XGrammar:
    """Compiled grammars are kept by their bytes, so requests with one grammar share it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        spellings, stops = list(vocabulary.spellings), list(vocabulary.stops)
        self._info = xgrammar.TokenizerInfo(spellings, xgrammar.VocabType.RAW, vocab_size=len(spellings), stop_token_ids=stops)
        self._ids = len(spellings)
        self._kept = Recent[bytes, xgrammar.CompiledGrammar](CACHE_BYTES, spares_newest=True)

    def compile(self, form: Form) -> bytes:
        """See `Backend`. Also refuses a grammar with which no reply can begin."""
        compiler = xgrammar.GrammarCompiler(self._info, max_threads=1, cache_enabled=False)
        try:
            compiled = compiler.compile_structural_tag(json.dumps({"type": "structural_tag", "format": form}))
            text = compiled.serialize_json()
        except RuntimeError as error:  # the library's own errors all are
            if "bad_alloc" in str(error):
                raise MemoryError from None
            raise GrammarError(_words(error)) from None
        if len(text) > MAX_BYTES:
            raise GrammarError(f"its automaton has {len(text) >> 20} MiB, this server takes {MAX_BYTES >> 20}; needed: a simpler one")
        if not _Matcher(compiled, self._ids).allowed().any():
            raise GrammarError("no reply can begin with it")
        return zlib.compress(text.encode(), 1)

    def matcher(self, compiled: bytes) -> _Matcher:
        """See `Backend`."""
        if (known := self._kept.get(compiled)) is None:
            known = xgrammar.CompiledGrammar.deserialize_json(zlib.decompress(compiled).decode(), self._info)
            self._kept.put(compiled, known, known.memory_size_bytes)
        return _Matcher(known, self._ids)


class _Matcher:
    def __init__(self, compiled: xgrammar.CompiledGrammar, ids: int) -> None:
        self._matcher, self._ids = xgrammar.GrammarMatcher(compiled), ids
        self._bits = np.empty((1, -(-ids // _ROW_BITS)), np.int32)

    def allowed(self) -> NDArray[np.bool_]:
        if self._matcher.is_terminated():
            return np.zeros(self._ids, np.bool_)
        self._bits.fill(-1)
        self._matcher.fill_next_token_bitmask(self._bits)
        return np.unpackbits(self._bits.view(np.uint8)[0], count=self._ids, bitorder="little").view(np.bool_)

    def accept(self, token: int) -> bool:
        return self._matcher.accept_token(token)

    def rollback(self, count: int) -> None:
        if count:
            self._matcher.rollback(count)

    @property
    def is_terminated(self) -> bool:
        return self._matcher.is_terminated()


def _words(error: Exception) -> str:
    """The library's reason without its time and place in its source."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    last = lines[-1].rpartition(" is false: ")[2] if lines else "the grammar library cannot compile it"
    return last.split(": ", 1)[-1].strip().rstrip(".")[:300]
