"""The attention op: `api.attention` is what layers call; `reference` defines it."""
