"""`Classification` and `Regression`: a model of any kind, and the right answer for each row.

Letters: B rows, C classes; `...` further dimensions, such as the pixels of a picture.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.config import Fraction, config
from axcore.errors import ConfigError
from axcore.module import ArraySpec, BatchSpec, ParamSpec, functional
from axcore.tasks.task import Task

ROW_WEIGHTS = "row_weights"


class SupervisedTask(Task):
    """Calls the model with arrays of a batch, and compares what it returns with another one.

    An array `row_weights` `[B]` of the batch says what each row weighs in the loss; without it each
    weighs 1. A subclass has `compare` and `check_result`.
    """

    @config
    class Config(Task.Config):
        """Describes a `SupervisedTask`.

        Args:
            inputs: The arrays that the model's `forward` is called with, in this order.
            target: The array that holds the right answers.
        """

        inputs: tuple[str, ...] = ("x",)
        target: str = "y"

    config: Config

    @property
    def arrays_read(self) -> tuple[str, ...]:
        """The arrays that a batch must have."""
        return (*self.config.inputs, self.config.target)

    def forward(self, batch: Mapping[str, Array]) -> None:
        """Add the loss and the measures of a batch."""
        result = self.model(*[batch[name] for name in self.config.inputs])
        target = batch[self.config.target]
        weights = batch.get(ROW_WEIGHTS, jnp.ones(len(target), jnp.float32))
        spread = jnp.expand_dims(weights, tuple(range(1, target.ndim)))
        self.compare(result.astype(jnp.float32), target, jnp.broadcast_to(spread, target.shape))

    def compare(self, result: Array, target: Array, weights: Float[Array, "batch ..."]) -> None:
        """Add the loss and the measures.

        Args:
            result: What the model returned, in float32.
            target: The right answers.
            weights: What each of them weighs, in the shape of `target`.
        """
        raise NotImplementedError(f"{type(self).__qualname__} has no compare")

    def check_result(self, result: Any, target: ArraySpec) -> None:
        """Check the shape and dtype of what the model returns.

        Raises:
            ConfigError: It cannot be compared with the right answers.
        """
        raise NotImplementedError(f"{type(self).__qualname__} has no check_result")

    def check_batch(self, batch: BatchSpec) -> None:
        """Check that a batch has the arrays of this task and no others, and what comes out.

        Raises:
            ConfigError: They differ, or the model returns what cannot be compared.
        """
        cfg = self.config
        check_arrays(self, self.arrays_read, batch)
        state = jax.tree.map(abstract, self.model.param_specs())
        inputs = [abstract(batch.arrays[one]) for one in cfg.inputs]
        # The trainer traces it again, in its mesh; here wrong shapes are found before data are.
        result = jax.eval_shape(lambda *args: functional(self.model, *args)[0], state, *inputs)
        self.check_result(result, batch.arrays[cfg.target])

    def _mismatch(self, what: str, hint: str) -> ConfigError:
        return ConfigError(what, where="model", hint=hint)


class Classification(SupervisedTask):
    """Cross-entropy of a model's logits `[B, ..., C]` and labels `[B, ...]`, integers from 0.

    It reports `accuracy`, the share of labels whose logit is the largest.
    """

    @config
    class Config(SupervisedTask.Config):
        """Describes `Classification`.

        Args:
            label_smoothing: Probability that is taken from the label and spread over all classes.
        """

        label_smoothing: Fraction = 0.0

    config: Config

    def compare(self, result: Array, target: Array, weights: Float[Array, "batch ..."]) -> None:
        """Add `cross_entropy`, in nats a label, and `accuracy`."""
        smooth, total = self.config.label_smoothing, jnp.sum(weights)
        log_probs = jax.nn.log_softmax(result, axis=-1)
        labels = target.astype(jnp.int32)
        right = jnp.take_along_axis(log_probs, labels[..., None], axis=-1)[..., 0]
        nll = -(1 - smooth) * right - smooth * jnp.mean(log_probs, axis=-1)
        self.add_loss("cross_entropy", jnp.sum(nll * weights), total)
        is_right = jnp.argmax(result, axis=-1) == labels
        self.add_measure("accuracy", jnp.sum(jnp.where(is_right, weights, 0)), total)

    def metric_units(self) -> Mapping[str, str]:
        """Return the units of the loss and of the accuracy."""
        return {"loss": "nats a label", "accuracy": "of labels"}

    def check_result(self, result: Any, target: ArraySpec) -> None:
        """Check that there is a logit for each class."""
        if target.num_values is None:
            raise ConfigError(
                f"{self.config.target} has {target.dtype}, some below 0 or no integers; "
                "expected labels from 0 on",
                where="data",
                hint="number the classes from 0, as integers",
            )
        is_alike = getattr(result, "shape", ())[:-1] == target.shape
        if not is_alike or result.shape[-1] < target.num_values:
            wanted = [*target.shape, target.num_values]
            raise self._mismatch(
                f"the model returns {_described(result)}; labels are up to "
                f"{target.num_values - 1}, so {Classification.__qualname__} needs logits {wanted}",
                f"return a logit for each of {target.num_values} classes or more, as the last "
                "dimension",
            )


class Regression(SupervisedTask):
    """Mean squared error of what a model returns and numbers of the same shape.

    It reports `mean_absolute_error`.
    """

    @config
    class Config(SupervisedTask.Config):
        """Describes `Regression`."""

    def compare(self, result: Array, target: Array, weights: Float[Array, "batch ..."]) -> None:
        """Add `squared_error`, a mean over values, and `mean_absolute_error`."""
        error, total = result - target.astype(jnp.float32), jnp.sum(weights)
        self.add_loss("squared_error", jnp.sum(error**2 * weights), total)
        self.add_measure("mean_absolute_error", jnp.sum(jnp.abs(error) * weights), total)

    def metric_units(self) -> Mapping[str, str]:
        """Return what the loss is; the error has the unit of the numbers themselves."""
        return {"loss": "mean squared error"}

    def check_result(self, result: Any, target: ArraySpec) -> None:
        """Check that shapes are equal: `[B, 1]` and `[B]` would be compared all with all."""
        if getattr(result, "shape", None) != target.shape:
            raise self._mismatch(
                f"the model returns {_described(result)}, and {self.config.target} has the shape "
                f"{list(target.shape)}; expected equal shapes",
                "return predictions[..., 0], or give the numbers the shape of the predictions",
            )


def check_arrays(task: Task, read: tuple[str, ...], batch: BatchSpec) -> None:
    """Check that a batch has the arrays that a task reads, and no others.

    Raises:
        ConfigError: They differ.
    """
    if {*read, ROW_WEIGHTS} != {*batch.arrays, ROW_WEIGHTS}:
        raise ConfigError(
            f"{type(task).__qualname__} reads {', '.join(read)}, and a batch has "
            f"{', '.join(batch.arrays)}",
            where="task",
            hint="set task.inputs and task.target to the names of the arrays, all of them",
        )


def abstract(spec: ArraySpec | ParamSpec) -> Any:
    """Return the shape and dtype of an array of a batch, or of a parameter, for `eval_shape`."""
    return jax.ShapeDtypeStruct(spec.shape, jnp.dtype(spec.dtype))  # type: ignore[no-untyped-call]


def _described(result: Any) -> str:
    shape = getattr(result, "shape", None)
    return f"a {type(result).__qualname__}" if shape is None else f"an array {list(shape)}"
