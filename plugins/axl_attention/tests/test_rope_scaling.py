"""`ExtendPositions`: a GPT-2 for longer rows begins with the table of one for shorter rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_attention.models import gpt2
from numpy_state import numpy_state
from rounding import assert_same_to_rounding

from axcore.config import update_config
from axcore.errors import ConfigError
from axcore.interop import ExtendPositions, HuggingFace, to_hugging_face
from axcore.models import llama2
from axcore.module import functional

SHORT = update_config(gpt2("toy"), {"**.max_length": 24})
LONG = update_config(SHORT, {"**.max_length": 60})
TOKENS = jnp.arange(48, dtype=jnp.int32).reshape(2, 24)


@pytest.fixture(scope="module")
def state():
    return jax.tree.map(jnp.asarray, numpy_state(SHORT.build().param_specs()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory, state):
    made = tmp_path_factory.mktemp("short") / "hf"
    to_hugging_face(made, SHORT, state)
    return made


def begun(folder, cfg, **edit):
    source = HuggingFace.Config(path=str(folder), edits=(ExtendPositions(**edit),))
    plan = source.build().plan(cfg)
    return plan.read(jax.eval_shape(lambda: cfg.build().init(0))), plan.table()


def logits(cfg, state):
    return functional(cfg.build(), state, TOKENS, method="logits")[0]


def table_of(state):
    return np.asarray(state["decoder"]["embedding"]["positions"])


@pytest.mark.slow
def test_repeated_positions_leave_the_logits_of_short_rows(folder, state):
    long, table = begun(folder, LONG)
    assert_same_to_rounding(logits(LONG, long), logits(SHORT, state))
    old, new = table_of(state), table_of(long)
    assert np.array_equal(new, np.concatenate([old, old, old[:12]]))
    assert "repeated to 60 rows" in table


def test_interpolated_positions_keep_both_ends_and_lie_on_lines_between(folder, state):
    old, new = table_of(state), table_of(begun(folder, LONG, by="interpolate")[0])
    np.testing.assert_allclose(new[[0, -1]], old[[0, -1]], atol=1e-6)
    places = np.arange(60) * 23 / 59
    expected = [np.interp(places, np.arange(24), column) for column in old.T]
    np.testing.assert_allclose(new, np.stack(expected, axis=1), atol=1e-5)


def test_rotary_positions_have_no_table(tmp_path, folder):
    cfg = llama2("toy")
    to_hugging_face(tmp_path / "hf", cfg, jax.jit(cfg.build().init)(0))
    with pytest.raises(ConfigError, match="finds no table of positions"):
        begun(tmp_path / "hf", cfg)
    with pytest.raises(ConfigError, match="has nothing to do"):
        begun(folder, SHORT)
