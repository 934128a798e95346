"""Typed readers of configuration files. Standard library only."""
