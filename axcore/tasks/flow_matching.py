"""`FlowMatching`: a model learns the velocity that leads from noise to data.

Letters: B rows, `...` the dimensions of what is generated, such as the pixels of a picture. Time t
goes from 0, which is noise, to 1, which is data.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

from axcore.config import Configurable, PositiveFloat, config
from axcore.errors import ConfigError
from axcore.module import ArraySpec, BatchSpec, Module, entry, functional
from axcore.tasks.supervised import ROW_WEIGHTS, abstract, check_arrays
from axcore.tasks.task import Task

Latents = Float[Array, "batch ..."]

_EVALUATION_SEED = 0
"""Of the noise of evaluations, which is the same in every run so that their losses compare."""


class GenerativeModel(Module):
    """What a model has that `FlowMatching` trains: `forward(latents, time, *inputs)`; abstract.

    Latents are what noise turns into: floats of about unit size that represent an array of
    the batch. By default they are that array itself.
    """

    @entry
    def to_latents(self, data: Array) -> Latents:
        """Return the latents of an array of the batch, `[B, ...]`."""
        return data

    @entry
    def from_latents(self, latents: Latents) -> Array:
        """Return the array that latents represent."""
        return latents


class PathPoint(NamedTuple):
    """A path at a time: `data_share * data + noise_share * noise`, and the derivatives by time."""

    data_share: Array
    noise_share: Array
    data_rate: Array
    noise_rate: Array


class NoisePath(Configurable, ABC):
    """How noise becomes data over time; pure."""

    @config
    class Config(Configurable.Config["NoisePath"]):
        """The fields of every path."""

    @abstractmethod
    def at(self, time: Float[Array, " batch"]) -> PathPoint:
        """Return the point of the path at times in [0, 1]."""


class StraightPath(NoisePath):
    """`t * data + (1 - t) * noise`: straight lines, which a solver follows in few steps.

    Source: Liu et al. 2022, arXiv:2209.03003, eq. 1; Lipman et al. 2022, arXiv:2210.02747, example
    II with a smallest deviation of 0.
    """

    @config
    class Config(NoisePath.Config):
        """Has no fields."""

    def at(self, time: Float[Array, " batch"]) -> PathPoint:
        """Return the point, whose velocity is `data - noise`."""
        return PathPoint(time, 1 - time, jnp.ones_like(time), -jnp.ones_like(time))


class CosinePath(NoisePath):
    """`sin(t pi/2) * data + cos(t pi/2) * noise`: diffusion that preserves variance.

    Its velocity is the v of v-prediction but for a factor, so the model is that of a diffusion
    model with a cosine schedule, and sampling is by its probability flow.

    Source: Albergo and Vanden-Eijnden 2022, arXiv:2209.15571, eq. 2.9; v-prediction, Salimans and
    Ho 2022, arXiv:2202.00512, appendix D.
    """

    @config
    class Config(NoisePath.Config):
        """Has no fields."""

    def at(self, time: Float[Array, " batch"]) -> PathPoint:
        """Return the point."""
        quarter = math.pi / 2
        sine, cosine = jnp.sin(time * quarter), jnp.cos(time * quarter)
        return PathPoint(sine, cosine, quarter * cosine, -quarter * sine)


class TimeDistribution(Configurable, ABC):
    """At which times of the path a model is trained; pure."""

    @config
    class Config(Configurable.Config["TimeDistribution"]):
        """The fields of every distribution."""

    @abstractmethod
    def sample(self, key: Array) -> Float[Array, ""]:
        """Return a time in [0, 1]."""


class UniformTime(TimeDistribution):
    """All times alike."""

    @config
    class Config(TimeDistribution.Config):
        """Has no fields."""

    def sample(self, key: Array) -> Float[Array, ""]:
        """Return a time."""
        return jax.random.uniform(key, (), jnp.float32)


class LogitNormalTime(TimeDistribution):
    """`sigmoid(mean + std * normal)`: more of the middle, where the velocity is hardest to predict.

    Source: Esser et al. 2024, arXiv:2403.03206, section 3.1.
    """

    @config
    class Config(TimeDistribution.Config):
        """The logit's distribution.

        Args:
            mean: Above 0 prefers times close to the data.
            std: Its standard deviation.
        """

        mean: float = 0.0
        std: PositiveFloat = 1.0

    def sample(self, key: Array) -> Float[Array, ""]:
        """Return a time."""
        cfg = self.config
        return jax.nn.sigmoid(cfg.mean + cfg.std * jax.random.normal(key, (), jnp.float32))


class FlowMatching(Task):
    """Mean squared error of the velocity that the model predicts at a random point of a path.

    The model is a `GenerativeModel`. Noise and time of a row depend on the row's content, and in
    training on the step; so evaluations compare, whatever the batch size. An array `row_weights`
    `[B]` of the batch says what each row weighs; without it each weighs 1.

    Source: Lipman et al. 2022, arXiv:2210.02747, eq. 9; Liu et al. 2022, arXiv:2209.03003, eq. 1.
    """

    @config
    class Config(Task.Config):
        """Describes `FlowMatching`.

        Args:
            target: The array that the model learns to generate.
            inputs: The arrays that the model is called with behind latents and time, such as the
                class.
            path: How noise becomes data.
            times: At which times the model is trained, and evaluated.
        """

        target: str = "image"
        inputs: tuple[str, ...] = ()
        path: NoisePath.Config = StraightPath.Config()
        times: TimeDistribution.Config = UniformTime.Config()

    config: Config
    model: GenerativeModel

    def setup(self, cfg: Any) -> None:
        """Build the model, the path and the distribution of times."""
        super().setup(cfg)
        self.path: NoisePath = cfg.path.build()
        self.times: TimeDistribution = cfg.times.build()

    def forward(self, batch: Mapping[str, Array]) -> None:
        """Add the loss of a batch: `squared_error`, a mean over values."""
        data = batch[self.config.target]
        latents = self.model.to_latents(data).astype(jnp.float32)
        keys = self._row_keys(data)
        time = jax.vmap(lambda key: self.times.sample(jax.random.fold_in(key, 0)))(keys)
        noise = jax.vmap(
            lambda key: jax.random.normal(jax.random.fold_in(key, 1), latents.shape[1:])
        )(keys)
        noised, velocity = noised_latents(self.path.at(time), latents, noise)
        predicted = self.model(noised, time, *[batch[name] for name in self.config.inputs])
        error = jnp.square(predicted.astype(jnp.float32) - velocity)
        by_row = jnp.mean(error, axis=tuple(range(1, error.ndim)))
        weights = batch.get(ROW_WEIGHTS, jnp.ones(len(data), jnp.float32))
        self.add_loss("squared_error", jnp.sum(by_row * weights), jnp.sum(weights))

    def _row_keys(self, data: Array) -> Array:
        """Return a random key for each row."""
        # Not by the row's number: neither padding nor the size of the batch changes its noise.
        key = self.rng("noise") if self.training else jax.random.key(_EVALUATION_SEED)
        return jax.vmap(jax.random.fold_in, (None, 0))(key, row_hashes(data))

    def metric_units(self) -> Mapping[str, str]:
        """Return what the loss is."""
        return {"loss": "mean squared error"}

    def check_batch(self, batch: BatchSpec) -> None:
        """Check that a batch has the arrays of this task and no others, and what comes out.

        Raises:
            ConfigError: They differ, or the model is not one that generates such an array.
        """
        cfg, model = self.config, self.model
        check_arrays(self, (cfg.target, *cfg.inputs), batch)
        if not isinstance(model, GenerativeModel):
            raise ConfigError(
                f"{type(self).__qualname__} trains a GenerativeModel, and the model is a "
                f"{type(model).__qualname__}",
                where="model",
                hint="derive the model from axcore.tasks.GenerativeModel, as DiT of axl-vision is",
            )
        model.check_batch(batch)
        target = batch.arrays[cfg.target]
        state = jax.tree.map(abstract, model.param_specs())

        def run(state: Any, data: Array, *inputs: Array) -> tuple[Array, Array]:
            latents, _ = functional(model, state, data, method="to_latents")
            time = jnp.zeros(len(data), jnp.float32)
            return latents, functional(model, state, latents, time, *inputs)[0]

        inputs = [abstract(batch.arrays[name]) for name in cfg.inputs]
        latents, predicted = jax.eval_shape(run, state, abstract(target), *inputs)
        _check_latents(cfg.target, target, latents, predicted)


def _check_latents(name: str, target: ArraySpec, latents: Any, predicted: Any) -> None:
    """Check what noise is added to, and that the model returns a velocity of its shape.

    Raises:
        ConfigError: They are not floats of one shape.
    """
    if not jnp.issubdtype(latents.dtype, jnp.floating):
        raise ConfigError(
            f"{name} has {target.dtype}, and so have its latents: noise is added to floats",
            where="task.target",
            hint="return floats around zero from the model's to_latents: data / 127.5 - 1",
        )
    if getattr(predicted, "shape", None) != latents.shape:
        raise ConfigError(
            f"the model returns {getattr(predicted, 'shape', type(predicted).__qualname__)}, and "
            f"latents have the shape {latents.shape}; expected equal shapes",
            where="model",
            hint="return a velocity for each number of the latents",
        )


def noised_latents(point: PathPoint, latents: Latents, noise: Latents) -> tuple[Latents, Latents]:
    """Return the latents at a point of the path for each row, and the velocity there."""
    over = tuple(range(1, latents.ndim))
    data_share, noise_share, data_rate, noise_rate = (jnp.expand_dims(x, over) for x in point)
    return (
        data_share * latents + noise_share * noise,
        data_rate * latents + noise_rate * noise,
    )


def row_hashes(data: Array) -> UInt32[Array, " batch"]:
    """Return a number for each row `[B, ...]`, a function of its content alone.

    It is a sum of integers, which has the same bits in whatever order it is computed.
    """
    flat = data.reshape(len(data), -1)
    if jnp.issubdtype(flat.dtype, jnp.floating):
        flat = jax.lax.bitcast_convert_type(flat.astype(jnp.float32), jnp.uint32)
    # Odd factors that differ by place: no single number of a row can change without the sum.
    places = jnp.arange(flat.shape[1], dtype=jnp.uint32)
    factors = (2 * places + 1) * jnp.uint32(0x9E3779B1)
    return jnp.sum(flat.astype(jnp.uint32) * factors[None, :], axis=1, dtype=jnp.uint32)


Solver = Literal["euler", "heun"]


def integrate(
    velocity: Callable[[Latents, Float[Array, ""]], Latents],
    noise: Latents,
    *,
    num_steps: int,
    solver: Solver = "heun",
) -> Latents:
    """Return where a velocity leads from noise: the solution of its equation from time 0 to 1.

    Args:
        velocity: Of latents at a time.
        noise: Where it begins.
        num_steps: Steps of equal length, in a scan.
        solver: `euler` asks for the velocity once a step and errs by the step's length, `heun`
            twice, and errs by its square.

    Source: Karras et al. 2022, arXiv:2206.00364, algorithm 1.
    """
    size = 1.0 / num_steps

    def step(latents: Latents, time: Float[Array, ""]) -> tuple[Latents, None]:
        first = velocity(latents, time)
        ahead = latents + size * first
        if solver == "euler":
            return ahead, None
        return latents + size / 2 * (first + velocity(ahead, time + size)), None

    times = jnp.arange(num_steps, dtype=jnp.float32) * size
    return jax.lax.scan(step, noise, times)[0]
