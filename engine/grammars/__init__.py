"""Grammars a reply must follow: what a request may ask, compiled in a process of its own, matched token by token in the engine."""
