"""Helpers and suites for those who write plugins. Importing this imports no jax."""

from axcore.testing.dist import make_dist

__all__ = ["make_dist"]
