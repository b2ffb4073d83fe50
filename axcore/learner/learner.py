"""`Learner`: from gradients to new parameters."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from axcore.config import REQUIRED, Configurable, config
from axcore.errors import ConfigError
from axcore.learner.freezing import with_frozen
from axcore.learner.optimizers import AdamW
from axcore.learner.schedules import WarmupCosine
from axcore.module import ParamSpec


class Update(NamedTuple):
    """One update: what is new, and what was measured on the way."""

    params: Any
    opt_state: Any
    gradient_norm: Float[Array, ""]


class Learner(Configurable):
    """Clips gradients, and updates parameters with an optimizer and a schedule."""

    @config
    class Config(Configurable.Config):
        """Describes a `Learner`.

        Args:
            total_steps: Steps of training; filled by the trainer.
            optimizer: Config of a class with `transformation(learning_rate, decays)`.
            schedule: The learning rate.
            clip_norm: Gradients of a larger global norm are scaled down to it; None never clips.
            trained: Globs of the parameters that are trained, by their paths in the state; all
                others stay as they are, and have no gradient and no optimizer state.
        """

        total_steps: int = REQUIRED
        optimizer: Configurable.Config = AdamW.Config()
        schedule: Configurable.Config = WarmupCosine.Config()
        clip_norm: float | None = 1.0
        trained: tuple[str, ...] = ("**",)

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        if cfg.clip_norm is not None and cfg.clip_norm <= 0:
            raise ConfigError(
                f"clip_norm is {cfg.clip_norm}; expected a number above 0",
                where="learner.clip_norm",
                mend="--set learner.clip_norm=none to train without clipping",
            )
        self.schedule = cfg.schedule.build(total_steps=cfg.total_steps)
        self._optimizer = cfg.optimizer.build()

    def with_frozen(self, specs: Any) -> Any:
        """Returns specs of parameters, in which those that are not trained are marked as frozen.

        Raises:
            ConfigError: A glob of `trained` matches no parameter.
        """
        return with_frozen(specs, self.config.trained)

    def transformation(self, specs: Any) -> optax.GradientTransformation:
        """Returns the optax transformation for parameters of these specs."""
        decays = jax.tree.map(lambda spec: spec.decay, specs, is_leaf=_is_spec)
        transformation: optax.GradientTransformation = self._optimizer.transformation(
            self.schedule, decays
        )
        return transformation

    def update(
        self,
        transformation: optax.GradientTransformation,
        gradients: Any,
        opt_state: Any,
        params: Any,
    ) -> Update:
        """Returns new parameters and optimizer state; pure."""
        norm = optax.tree.norm(gradients)
        if self.config.clip_norm is not None:
            factor = jnp.minimum(1.0, self.config.clip_norm / jnp.maximum(norm, 1e-9))
            gradients = jax.tree.map(lambda g: g * factor.astype(g.dtype), gradients)
        with jax.numpy_dtype_promotion("standard"):  # optax counts on it
            updates, opt_state = transformation.update(gradients, opt_state, params)
            params = optax.apply_updates(params, updates)
        return Update(params, opt_state, norm)


def _is_spec(leaf: Any) -> bool:
    return isinstance(leaf, ParamSpec)
