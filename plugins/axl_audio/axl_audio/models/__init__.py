"""Families of models of sound, each a function from a size to a config."""
