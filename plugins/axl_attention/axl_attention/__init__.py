"""Attention variants for axcore: sliding-window attention."""
