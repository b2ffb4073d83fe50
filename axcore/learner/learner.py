"""The learner: one optimizer step, with clipping, weight averages (EMA) and skipped loss spikes."""

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from axcore.config import (
    REQUIRED,
    Configurable,
    Fraction,
    PositiveFloat,
    PositiveInt,
    Resumable,
    config,
)
from axcore.errors import ConfigError
from axcore.learner.groups import REST, ParamGroup, partition, with_frozen
from axcore.learner.optimizers import AdamW, AveragedState
from axcore.learner.schedules import Schedule, WarmupCosine
from axcore.module import ParamSpec

if TYPE_CHECKING:
    import optax


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
        """Return the average before the first update."""
        # A copy: the step donates its state, and a buffer cannot be donated twice.
        return jax.tree.map(lambda p: jnp.array(p, _average_dtype(p)), params)

    def update(self, average: Any, params: Any) -> Any:
        """Return the average after an update that gave `params`."""
        decay = self.config.decay
        assert decay is not None, "a learner keeps no average without a decay"
        # In the average's dtype: 0.999 is 1 in bfloat16, and the average would never move.
        return jax.tree.map(
            lambda a, p: decay * a + (1 - decay) * p.astype(a.dtype), average, params
        )


def _average_dtype(param: Any) -> Any:
    return param.dtype if param.dtype.itemsize > 4 else jnp.float32


class LossWindow(NamedTuple):
    """Losses of the last steps that were not skipped, in a ring.

    Args:
        losses: Where step i of those is at place `i % window`.
        num_losses: How many there were.
    """

    losses: Float[Array, " window"]
    num_losses: Int[Array, ""]


class SpikeGuard(Configurable):
    """Finds a spike: a loss more than `sigmas` standard deviations above the mean of its window.

    It finds none until the window is full.
    """

    @config
    class Config(Configurable.Config["SpikeGuard"]):
        """Describes a `SpikeGuard`.

        Args:
            sigmas: Standard deviations above the mean from which a loss is a spike; 6 is cautious.
                None takes no loss for a spike.
            window: Steps that the mean is taken over.
        """

        sigmas: PositiveFloat | None = None
        window: PositiveInt = 100

    def init(self) -> LossWindow:
        """Return the window before the first step."""
        return LossWindow(jnp.zeros(self.config.window, jnp.float32), jnp.zeros((), jnp.int32))

    def is_spike(self, window: LossWindow, loss: Float[Array, ""]) -> Bool[Array, ""]:
        """Whether a loss is a spike after those of the window."""
        # A window of its own next to the metrics': it lives on the
        # device, so that a step can be skipped without asking the host.
        sigmas = self.config.sigmas
        assert sigmas is not None, "a learner asks no guard that takes no loss for a spike"
        limit = jnp.mean(window.losses) + sigmas * jnp.std(window.losses)
        # A deviation of few losses says nothing, and the first steps of a run fall steeply anyway.
        is_full: Array = window.num_losses >= self.config.window
        is_spike: Array = is_full & (loss > limit)
        return is_spike

    def add(self, window: LossWindow, loss: Float[Array, ""]) -> LossWindow:
        """Return the window with the loss of one more step."""
        place = window.num_losses % self.config.window
        # A ring, since shapes are fixed; its order does not matter to mean and deviation.
        return LossWindow(
            window.losses.at[place].set(loss.astype(jnp.float32)), window.num_losses + 1
        )


class UpdateResult(NamedTuple):
    """One update: what is new, and what was measured on the way."""

    params: Any
    opt_state: Any
    gradient_norm: Float[Array, ""]
    is_spike: Bool[Array, ""]


class LearnerState(NamedTuple):
    """The optimizer's state and what else a learner keeps; None where it keeps none.

    Args:
        optimizer: The state of the optax transformation.
        average: The average of the parameters.
        window: The losses of the last steps.
    """

    optimizer: Any
    average: Any
    window: LossWindow | None


class Learner(Configurable):
    """Clips gradients, and updates parameters with optimizers and schedules."""

    @config
    class Config(Configurable.Config["Learner"]):
        """Describes a `Learner`.

        Args:
            total_steps: Steps of training; filled by the trainer.
            optimizer: Config of an `Optimizer`.
            schedule: The learning rate.
            clip_norm: Gradients of a larger global norm are scaled down to it; None never clips.
            trainable: Globs of the parameters that are trained, by their paths in the state; all
                others stay as they are, and have no gradient and no optimizer state.
            groups: Groups of parameters that train in their own way; the first that matches a
                parameter takes it, and the optimizer and schedule above train the rest.
            ema: The average of the parameters to keep.
            skip_spikes: What finds steps whose loss jumps, which then change nothing.
        """

        total_steps: PositiveInt = REQUIRED
        optimizer: Configurable.Config = AdamW.Config()
        schedule: Resumable[Configurable.Config] = WarmupCosine.Config()
        clip_norm: Resumable[float | None] = 1.0
        trainable: tuple[str, ...] = ("**",)
        groups: tuple[ParamGroup, ...] = ()
        ema: EMA.Config = EMA.Config()
        skip_spikes: SpikeGuard.Config = SpikeGuard.Config()

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        # Not in the field's type, whose error could not say how clipping is switched off.
        if cfg.clip_norm is not None and cfg.clip_norm <= 0:
            raise ConfigError(
                f"clip_norm is {cfg.clip_norm}; expected a number above 0",
                where="learner.clip_norm",
                hint="--set learner.clip_norm=none to train without clipping",
            )
        self.schedule: Schedule = cfg.schedule.build(total_steps=cfg.total_steps)
        self._groups = {group.name: group for group in cfg.groups}
        self._schedules = {
            group.name: group.schedule.build(total_steps=cfg.total_steps)
            for group in cfg.groups
            if group.schedule
        }
        self._optimizers = {
            group.name: group.optimizer.build() for group in cfg.groups if group.optimizer
        }
        self._optimizer = cfg.optimizer.build()
        self._ema = cfg.ema.build() if cfg.ema.decay is not None else None
        self._spikes = cfg.skip_spikes.build() if cfg.skip_spikes.sigmas else None
        self._check_averages()

    def with_frozen(self, specs: Any) -> Any:
        """Return specs of parameters, in which those that are not trained are marked as frozen.

        Raises:
            ConfigError: A glob matches no parameter, or a group is empty.
        """
        return with_frozen(specs, self.config.trainable, self.config.groups)

    def transformation(self, specs: Any) -> "optax.GradientTransformation":
        """Return the optax transformation for parameters of these specs.

        Its `update` raises a ConfigError where a parameter has so little precision that its
        optimizer would lose updates.
        """
        groups = self.config.groups
        return partition(specs, groups, self._of_group) if groups else self._of_group(REST, specs)

    def rate(self, group: str, step: Array | int) -> Array:
        """Return the learning rate of a group after so many updates."""
        rate: Array = self._schedules.get(group, self.schedule)(step)
        return rate * self._groups[group].rate_scale if group in self._groups else rate

    def rates(self, step: int) -> dict[str, float]:
        """Return the metrics of the learning rates after so many updates, by name."""
        return {name: float(rate) for name, rate in self._jitted_rates(step).items()}

    @cached_property
    def _jitted_rates(self) -> Any:
        """The rates as one program, where each operation alone would be one to compile."""
        # Frozen groups have no rate that anybody would look at.
        trained = [group.name for group in self.config.groups if not group.is_frozen]
        groups = {"learning_rate": REST, **{f"learning_rate/{name}": name for name in trained}}
        return jax.jit(lambda step: {k: self.rate(name, step) for k, name in groups.items()})

    def init(self, transformation: "optax.GradientTransformation", params: Any) -> Any:
        """Return the state before the first update; that of the optimizer alone by default."""
        opt_state = transformation.init(params)
        # The bare optimizer's state where nothing else is kept:
        # checkpoints from before there were averages have that form.
        if self._ema is None and self._spikes is None:
            return opt_state
        average = None if self._ema is None else self._ema.init(params)
        window = None if self._spikes is None else self._spikes.init()
        return LearnerState(opt_state, average, window)

    def gradients(
        self,
        compute: Callable[[Any, Any, Any, Array], Any],
        merge: Callable[[Any], Any],
        model: Any,
        params: Any,
        opt_state: Any,
        batch: Any,
        key: Array,
    ) -> Any:
        """Return the gradients of a step, as `update` takes them, and what else was computed.

        Args:
            compute: Returns gradients and more from parameters, the model's state, rows and a key.
            merge: Returns the outputs of stacked parts of a batch as those of all of it.
            model: The model's state.
            params: The parameters.
            opt_state: What `init` or the last update returned.
            batch: The rows of the step.
            key: Its random key.
        """
        return compute(params, model, batch, key)

    def update(
        self,
        transformation: "optax.GradientTransformation",
        gradients: Any,
        opt_state: Any,
        params: Any,
        *,
        loss: Float[Array, ""],
    ) -> UpdateResult:
        """Return new parameters and state; pure.

        Args:
            transformation: What `transformation` returned.
            gradients: Of the loss by the parameters.
            opt_state: What `init` or the last update returned.
            params: The parameters.
            loss: The loss of the step.
        """
        import optax

        # In bfloat16 the norm would be one of 256 numbers between two powers of 2.
        norm = optax.tree.norm(jax.tree.map(_wide, gradients))
        if self.config.clip_norm is not None:
            # The lower bound is for gradients that are all zero, as of rows of padding.
            factor = jnp.minimum(1.0, self.config.clip_norm / jnp.maximum(norm, 1e-9))
            # Multiplied in float32 and rounded once.
            gradients = jax.tree.map(
                lambda g: (_wide(g) * factor.astype(_wide(g).dtype)).astype(g.dtype), gradients
            )
        kept = (
            opt_state
            if isinstance(opt_state, LearnerState)
            else LearnerState(opt_state, None, None)
        )
        with jax.numpy_dtype_promotion("standard"):  # optax counts on it
            updates, state = transformation.update(gradients, kept.optimizer, params)
            params = optax.apply_updates(params, updates)
        is_spike = jnp.zeros((), bool)
        average, window = kept.average, kept.window
        if self._ema is not None:
            # Of the new parameters, also at a step that is
            # skipped: the trainer then takes none of this.
            average = self._ema.update(average, params)
        if self._spikes is not None and window is not None:
            is_spike = self._spikes.is_spike(window, loss)
            # A spike does not stay in it: the step that it skips keeps the window of before.
            window = self._spikes.add(window, loss)
        if kept is opt_state:
            state = LearnerState(state, average, window)
        return UpdateResult(params, state, norm, is_spike)

    def evaluated_part(self, opt_state: Any) -> Any:
        """Return the part of the state that evaluation uses; None if it uses none."""
        # The rest is None, so evaluation need not hold the optimizer's state.
        if self._keeps_average:
            if isinstance(opt_state, LearnerState):
                return LearnerState(AveragedState(opt_state.optimizer.average, None), None, None)
            return AveragedState(opt_state.average, None)
        if self._ema is None or not self._ema.config.is_evaluated:
            return None
        return LearnerState(None, opt_state.average, None)

    def evaluated_params(self, opt_state: Any, params: Any) -> Any:
        """Return the parameters that evaluation uses: their average where the config says so."""
        part = self.evaluated_part(opt_state)
        if part is None:
            return params
        # The optimizer's own where that keeps one.
        is_inside = isinstance(part, LearnerState) and self._keeps_average
        average = part.optimizer.average if is_inside else part.average
        return jax.tree.map(lambda average, p: average.astype(p.dtype), average, params)

    @property
    def _keeps_average(self) -> bool:
        return getattr(self._optimizer, "keeps_average", False)

    def _check_averages(self) -> None:
        """Raise a ConfigError where an optimizer keeps an average that evaluation could not use."""
        found = [
            one
            for one in (self._optimizer, *self._optimizers.values())
            if getattr(one, "keeps_average", False)
        ]
        if not found:
            return
        name = type(found[0]).__qualname__
        if self.config.groups:
            raise ConfigError(
                f"{name} keeps the average that evaluation uses, of all parameters; with groups it "
                "would be of some only",
                where="learner.groups",
                hint="leave the groups out, or train with AdamW",
            )
        if self._ema is not None:
            raise ConfigError(
                f"{name} keeps an average itself, and evaluation uses one only",
                where="learner.ema.decay",
                hint="--set learner.ema.decay=none",
            )

    def _of_group(self, name: str, specs: Any) -> "optax.GradientTransformation":
        optimizer = self._optimizers.get(name, self._optimizer)
        transformation: optax.GradientTransformation = optimizer.transformation(
            lambda step: self.rate(name, step), specs
        )
        # Found now, raised at the first update: see `_lost_updates`.
        error = _lost_updates(optimizer, specs)
        return transformation if error is None else transformation._replace(update=_raising(error))


def _wide(x: Array) -> Array:
    return x.astype(jnp.float32) if x.dtype.itemsize < 4 else x


def _lost_updates(optimizer: Any, specs: Any) -> ConfigError | None:
    """Return an error where updates would be lost as parameters are rounded to their dtype.

    Only who trains gets it: a model is also built, loaded and served in 16 bits, whatever optimizer
    its config names.
    """
    rounded = getattr(optimizer, "rounded_dtypes", ())
    leaves = jax.tree.leaves(specs, is_leaf=lambda leaf: isinstance(leaf, ParamSpec))
    trained = [spec for spec in leaves if isinstance(spec, ParamSpec)]
    narrow = [
        spec
        for spec in trained
        # bfloat16 has 8 bits of precision: an update below 1/512 of a weight is rounded away.
        if jnp.dtype(spec.dtype).itemsize < 4 and str(spec.dtype) not in rounded
    ]
    if not narrow:
        return None
    first, more = narrow[0], len(narrow) - 1
    return ConfigError(
        f"{first.name} is trained in {first.dtype}{f', and {more} more' if more else ''}; "
        f"{type(optimizer).__qualname__} would lose updates and weight decay that are small "
        "compared with a weight",
        where="model.dtypes.param",
        hint="--modify 'low_precision_optimizer(format=bfloat16)' rounds bfloat16 so that they "
        "count; --set model.dtypes.param=float32 trains float32, and "
        "--set model.dtypes.compute=bfloat16 is what makes products fast",
    )


def _raising(error: ConfigError) -> Any:
    def update(*arguments: Any, **more: Any) -> Any:
        raise error

    return update
