"""Judges any live server over HTTP: bundled questions, plain rules, a verdict. Knows nothing of how a server is built or started."""
