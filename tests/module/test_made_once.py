"""`made_once`: modules that read one array share what they make of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.config import config
from axcore.module import Module, Remat, functional


class Reader(Module):
    """Makes the array's double, and notes that it did."""

    @config
    class Config(Module.Config):
        name: str = "double"

    def forward(self, x, made):
        def make():
            made.append(self.config.name)
            return 2 * x

        return self.made_once(self.config.name, x, make)


class Readers(Module):
    """Two readers side by side, each given an array."""

    @config
    class Config(Module.Config):
        one: Module.Config = Reader.Config()
        other: Module.Config = Reader.Config()

    def setup(self, cfg):
        self.one, self.other = cfg.one.build(), cfg.other.build()

    def forward(self, x, y, made):
        return self.one(x, made), self.other(y, made)


X = jnp.ones(3)


def test_two_readers_of_one_array_make_it_once():
    made = []
    (one, other), _ = functional(Readers.Config().build(), {}, X, X, made)
    assert one is other
    assert made == ["double"]


def test_equal_arrays_are_two():
    made = []
    (one, other), _ = functional(Readers.Config().build(), {}, X, X + 0, made)
    np.testing.assert_array_equal(one, other)
    assert made == ["double"] * 2


def test_another_name_is_made_for_itself():
    made = []
    readers = Readers.Config(other=Reader.Config(name="twice")).build()
    functional(readers, {}, X, X, made)
    assert made == ["double", "twice"]


def test_another_call_makes_it_anew():
    made = []
    for _ in range(2):
        functional(Readers.Config().build(), {}, X, X, made)
    assert made == ["double"] * 2


class Inside(Reader):
    """A reader that reads within a transformation of its own what is outside of it."""

    @config
    class Config(Reader.Config):
        """Describes an `Inside`."""

    def forward(self, x, made):
        read = lambda _: super(Inside, self).forward(x, made)  # noqa: E731
        return jax.vmap(read)(jnp.arange(2))[0]


@pytest.mark.parametrize("transformed", [Inside.Config(), Reader.Config(remat=Remat())])
@pytest.mark.parametrize("is_first", [True, False])
def test_what_was_made_within_a_transformation_stays_there(transformed, is_first):
    """A value that left it would be an error of jax."""
    readers = Readers.Config(**{"one" if is_first else "other": transformed}).build()
    one, other = jax.jit(lambda x: functional(readers, {}, x, x, [])[0])(X)
    np.testing.assert_array_equal(one, 2 * X)
    np.testing.assert_array_equal(other, 2 * X)
