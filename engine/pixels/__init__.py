"""A program of its own that decodes one file from a stranger into pixels, locked in. Of the engine it knows the limits of media only."""
