"""The decode attention op: attention of new tokens over a cache."""
