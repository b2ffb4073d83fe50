"""Sample calls of RMS normalisation: any rank, with and without a scale, large and small rows."""

from typing import NamedTuple

import attrs
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike


class RmsNormInputs(NamedTuple):
    """The arrays of a call."""

    x: Array
    scale: Array | None


@attrs.frozen(kw_only=True)
class RmsNormSample:
    """A recipe for a call: sizes, the scale's dtype (none without one) and static choices."""

    name: str
    shape: tuple[int, ...] = (3, 5, 24)
    scale_dtype: str | None = "float32"
    epsilon: float = 1e-6
    scale_offset: float = 0.0

    def make(self, dtype: DTypeLike = jnp.float32) -> tuple[RmsNormInputs, tuple[float, float]]:
        """Return the arrays, and epsilon with the scale's offset; equal each time."""
        numbers = np.random.default_rng(len(self.name))
        sizes = 10.0 ** numbers.uniform(-1.0, 2.0, (*self.shape[:-1], 1))
        x = jnp.asarray((numbers.standard_normal(self.shape) * sizes).astype(dtype))
        scale = None
        if self.scale_dtype is not None:
            scale = jnp.asarray(numbers.standard_normal(self.shape[-1:]).astype(self.scale_dtype))
        return RmsNormInputs(x, scale), (self.epsilon, self.scale_offset)


RMS_NORM_SAMPLES = (
    RmsNormSample(name="plain"),
    RmsNormSample(name="one_row", shape=(24,)),
    RmsNormSample(name="odd_width", shape=(5, 7)),
    RmsNormSample(name="no_scale", scale_dtype=None),
    RmsNormSample(name="narrow_scale", scale_dtype="bfloat16"),
    RmsNormSample(name="offset", scale_offset=1.0),
    RmsNormSample(name="large_epsilon", epsilon=0.5),
)
