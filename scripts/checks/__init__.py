"""Checks of the sources themselves, for developers and CI. Only `documents` imports the product, whose registries it renders."""
