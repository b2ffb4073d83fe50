"""Skips what XLA compiles for no processor without F16C, as of before 2012 or under SSE4_2.

There, XLA calls functions that convert float16, and brings none. Most of float8 goes through it.
"""

import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import pytest

_LACKS = "Failed to materialize symbols"


@functools.cache
def _converts_float16() -> bool:
    try:
        jax.block_until_ready(jax.jit(lambda x: x.astype(jnp.float16))(jnp.ones(3)))
    except jax.errors.JaxRuntimeError as error:
        if _LACKS in str(error):
            return False
        raise
    return True


def _texts(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield str(error)
        error = error.__cause__ or error.__context__


def _or_skipped() -> Iterator[None]:
    try:
        return (yield)
    except Exception as error:
        if any(_LACKS in text for text in _texts(error)) and not _converts_float16():
            pytest.skip("XLA compiles no float16 for a processor without F16C")
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    return (yield from _or_skipped())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    return (yield from _or_skipped())
