"""Positions, attention variants, and the model families that need them, for axcore."""
