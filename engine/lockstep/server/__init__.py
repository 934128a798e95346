"""The front process: an OpenAI-compatible API in front of the engine process. Never imports torch."""

from lockstep.server.process import serve

__all__ = ["serve"]
