"""Attention of the newest tokens over a cache, read once and as it is stored."""
