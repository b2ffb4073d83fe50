"""`with_shared`: what is shared for a block reaches what runs in it, and nothing later."""

import jax.numpy as jnp
import pytest

from axcore.config import REQUIRED, config
from axcore.module import Module, functional


class Told(Module):
    """Returns the shared value, -1 where there is none."""

    def forward(self):
        return self.get_shared("news", jnp.asarray(-1))


class Telling(Module):
    """Shares a value before, within, and after a block."""

    @config
    class Config(Module.Config):
        told: Module.Config = Told.Config()
        is_open: bool = REQUIRED
        fails: bool = False

    def setup(self, cfg):
        self.told = cfg.told.build()

    def forward(self):
        if self.config.is_open:
            self.set_shared("news", jnp.asarray(1))
        before = self.told()
        try:
            with self.with_shared("news", jnp.asarray(2)):
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
