"""What a model says when it is called with something else than a batch."""

import subprocess
import sys

import attrs
import pytest

from axcore.errors import ConfigError
from axcore.models import llama2
from axcore.module import ArraySpec, BatchSpec

PROGRAM = """
import jax.numpy as jnp, axcore as ax
from axcore.models import llama2
model = llama2("toy").build()
tokens = jnp.zeros((2, 8), jnp.int32)
ax.functional(model, model.init(0), {argument})
"""


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("tokens", "called with an array of int32[2, 8]; expected a mapping of tokens, targets"),
        ("'text'", "called with str; expected a mapping of tokens"),
        ("{'tokens': tokens}", "called without targets, positions, loss_weights"),
    ],
)
@pytest.mark.quick_one_in(6)
def test_a_wrong_batch_is_named_with_what_was_expected(argument: str, says: str) -> None:
    """In a process of its own: the suite's type checks would refuse it before the model does."""
    command = [sys.executable, "-c", PROGRAM.replace("{argument}", argument)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "ModuleError" in done.stderr
    assert says in done.stderr
    assert 'method="logits"' in done.stderr


def test_a_batch_with_an_array_that_would_be_passed_over_is_refused():
    model = llama2("toy").build()
    row = ArraySpec(shape=(2, 8), axes=("batch", "time"), dtype="int32")
    names = ("tokens", "targets", "positions", "loss_weights", "segment_ids")
    spec = BatchSpec(arrays=dict.fromkeys(names, row), unit="token", num_units=16)
    model.check_batch(spec)
    misspelt = attrs.evolve(spec, arrays={**spec.arrays, "segments": row})
    with pytest.raises(ConfigError, match="a batch has segments, which CausalLM does not read"):
        model.check_batch(misspelt)
