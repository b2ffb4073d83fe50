"""Fixtures that install plugins for the length of one test."""

from installed_plugins import installed, source

__all__ = ["installed", "source"]
