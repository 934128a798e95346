"""The six steps of a start, one file each. Each says whether its result is there, what it does, and does it."""
