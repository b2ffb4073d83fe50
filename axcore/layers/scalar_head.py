"""`ScalarHead`: one number for a place instead of logits, as a reward model ends with."""

from typing import Any, NoReturn

import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, config
from axcore.errors import ModuleError
from axcore.layers.linear import as_row
from axcore.module import Initializer, Module, Param, VarianceScaling


class ScalarHead(Module):
    """A bias-free linear layer from a hidden vector to one number.

    Slot protocol: that of heads of language models, whose parent fills the first two.
    """

    @config
    class Config(Module.Config["ScalarHead"]):
        """Describes a `ScalarHead`.

        Args:
            dim: Size of a hidden vector.
            vocab_size: Number of tokens; no weight depends on it.
            weight_init: First value of the weights.
        """

        dim: PositiveInt = REQUIRED
        vocab_size: PositiveInt = REQUIRED
        weight_init: Initializer = VarianceScaling()

        @property
        def is_new_in_fine_tuning(self) -> bool:
            """A reward model's head: frozen at random numbers it would mean nothing."""
            return True

    def setup(self, cfg: Config) -> None:
        """Declare the weights."""
        # Float32 always: it costs next to nothing, and rewards are compared by small differences.
        self.weight = Param(
            (1, cfg.dim),
            axes=(None, "embed"),
            inputs=("embed",),
            init=cfg.weight_init,
            cast=False,
        )

    def forward(
        self, x: Float[Array, "batch places dim"], table: Array
    ) -> Float[Array, "batch places 1"]:
        """Return a float32 number for each place; `table`, the embedding table, is not read."""
        # No product of matrices, which some hardware computes with fewer bits.
        weight = as_row(self.weight[0].astype(jnp.float32), x.ndim)
        return jnp.sum(x.astype(jnp.float32) * weight, axis=-1, keepdims=True)

    def loss(self, *args: Any) -> NoReturn:
        """Refuse: it says nothing of the next token."""
        raise _no_tokens("a cross-entropy")

    def log_probs(self, *args: Any) -> NoReturn:
        """Refuse: it says nothing of the next token."""
        raise _no_tokens("log-probabilities")


def _no_tokens(what: str) -> ModuleError:
    return ModuleError(
        f"{what} of tokens is asked of a model whose head gives one number, a reward",
        hint="train it with the task reward_model, or leave scalar_head out",
    )
