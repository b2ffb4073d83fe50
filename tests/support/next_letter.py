"""A model whose next token depends on the last alone."""

import itertools

import jax.numpy as jnp
import numpy as np

from axcore.config import REQUIRED, config
from axcore.module import Module, Param, entry


class NextLetter(Module):
    """Gives the token after `t` the logits of row `t` of a table."""

    @config
    class Config(Module.Config):
        vocab_size: int = REQUIRED

    def setup(self, cfg):
        self.table = Param((cfg.vocab_size, cfg.vocab_size), axes=(None, None), init=0.0)

    @entry
    def logits(self, tokens, info=None, at=None):
        return self.table[jnp.take_along_axis(tokens, at, axis=1)]


def letter_chain(text, vocab_size):
    """Returns a state in which each letter is followed by the next one, in a circle."""
    table = np.zeros((vocab_size, vocab_size), np.float32)
    for before, after in itertools.pairwise(text + text[0]):
        table[ord(before), ord(after)] = 20.0
    return {"table": jnp.asarray(table)}
