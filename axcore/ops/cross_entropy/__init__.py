"""The cross-entropy op, with the output projection in it."""
