"""`EMA`: an exponential moving average of the parameters, kept beside the optimizer's state."""

from typing import Any

import jax
import jax.numpy as jnp

from axcore.config import Configurable, Fraction, config


class EMA(Configurable):
    """After each update, `average = decay * average + (1 - decay) * parameters`.

    The average starts as the first parameters, and has float32 at least. A skipped step does not
    change it.
    """

    @config
    class Config(Configurable.Config["EMA"]):
        """Describes an `EMA`.

        Args:
            decay: Weight of the average so far; 0.999 averages over about the last 1000 steps. None
                keeps no average.
            is_evaluated: Whether evaluation uses the average; otherwise it is only saved.
        """

        decay: Fraction | None = None
        is_evaluated: bool = True

    def init(self, params: Any) -> Any:
        """Returns the average before the first update."""
        return jax.tree.map(lambda p: jnp.array(p, _average_dtype(p)), params)

    def update(self, average: Any, params: Any) -> Any:
        """Returns the average after an update that gave `params`."""
        decay = self.config.decay
        assert decay is not None, "a learner keeps no average without a decay"
        return jax.tree.map(
            lambda a, p: decay * a + (1 - decay) * p.astype(a.dtype), average, params
        )


def _average_dtype(param: Any) -> Any:
    return param.dtype if param.dtype.itemsize > 4 else jnp.float32
