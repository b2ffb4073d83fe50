"""Modules of other libraries as layers; each imports its library."""
