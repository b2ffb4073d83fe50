"""`sending`: what is sent for the time of a block reaches those who run in it, and nobody later."""

import jax.numpy as jnp
import pytest

from axcore.config import REQUIRED, config
from axcore.module import Module, functional


class Told(Module):
    """Returns what it is told, -1 where nobody tells it anything."""

    def forward(self):
        return self.receive("news", jnp.asarray(-1))


class Telling(Module):
    """Tells its child before, within, and after a block."""

    @config
    class Config(Module.Config):
        told: Module.Config = Told.Config()
        is_open: bool = REQUIRED
        fails: bool = False

    def setup(self, cfg):
        self.told = cfg.told.build()

    def forward(self):
        if self.config.is_open:
            self.send("news", jnp.asarray(1))
        before = self.told()
        try:
            with self.sending("news", jnp.asarray(2)):
                within = self.told()
                if self.config.fails:
                    raise ValueError("stop")
        except ValueError:
            pass
        return before, within, self.told()


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(("is_open", "heard"), [(False, [-1, 2, -1]), (True, [1, 2, 1])])
def test_what_is_sent_for_a_block_ends_with_it(is_open, heard, fails):
    module = Telling.Config(is_open=is_open, fails=fails).build()
    values, _ = functional(module, {})
    assert [int(value) for value in values] == heard
