"""Compiling the programs by which a model serves."""
