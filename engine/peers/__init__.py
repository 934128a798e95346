"""Whether two devices of this machine get each other's bytes, asked before anything is served.

Uses the engine's exchange, so that what is proved is what serves; knows no model.
"""
