"""Distillation: a student learns the probabilities that a teacher gives the next token.

`Distill` has the teacher in memory, of any size; `DistillTopK` reads its likeliest tokens from the
batch. `divergence` compares two distributions and knows neither, for any objective that has two
models' log-probabilities.

Letters: B rows, T tokens of a row, V tokens of the vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import attrs
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from axcore.config import REQUIRED, PositiveFloat, UnitInterval, config
from axcore.data.teacher_cache import TEACHER_LOG_PROBS, TEACHER_TOKENS
from axcore.errors import ConfigError
from axcore.layers import packed_rows
from axcore.models.causal_lm import LOGITS_AT_ONCE
from axcore.module import NATS_A_TOKEN, BatchSpec, ModelFlops, Module
from axcore.tasks.task import FrozenModel, Task


def divergence(
    student: Float[Array, "*places vocab"], teacher: Float[Array, "*places vocab"], beta: float
) -> Float[Array, "*places"]:
    """Return the generalized Jensen-Shannon divergence of log-probabilities, in nats.

    With P the teacher's distribution, Q the student's and `M = beta P + (1 - beta) Q`, it is
    `beta KL(P, M) + (1 - beta) KL(Q, M)`; at its ends, where that is 0, what it is in the limit
    but for a factor: the forward divergence `KL(P, Q)` for 0, the reverse one `KL(Q, P)` for 1.

    Args:
        student: Log-probabilities over the last axis, which the gradient is by.
        teacher: Those to learn; minus infinity where the teacher excludes a token.
        beta: From 0 to 1.

    Source: Agarwal et al. 2024, arXiv:2306.13649, eq. 1 and section 2.
    """
    if beta == 0:
        return kl_divergence(teacher, student)
    if beta == 1:
        return kl_divergence(student, teacher)
    # In logarithms: probabilities far below the smallest float32 differ by finite factors still.
    mixture = jnp.logaddexp(teacher + jnp.log(beta), student + jnp.log1p(-beta))
    return beta * kl_divergence(teacher, mixture) + (1 - beta) * kl_divergence(student, mixture)


def kl_divergence(
    of: Float[Array, "*places vocab"], other: Float[Array, "*places vocab"]
) -> Float[Array, "*places"]:
    """Return the Kullback-Leibler divergence `sum P (log P - log Q)` of log-probabilities."""
    # 0 times minus infinity is nan: what P excludes adds nothing, whatever Q has for it.
    is_there = of > -jnp.inf
    difference = jnp.where(is_there, of, 0) - jnp.where(is_there, other, 0)
    return jnp.sum(jnp.exp(of) * difference, axis=-1)


class DistillationTask(Task):
    """A divergence from what a teacher says, mixed with the cross-entropy of the data.

    A subclass has `taught`, what is known of the teacher for each token, and `divergences`.
    """

    @config
    class Config(Task.Config):
        """Describes a `DistillationTask`.

        Args:
            beta: Which divergence: 0 is KL(teacher, student), 1 is KL(student, teacher), between
                are generalized Jensen-Shannon divergences.
            cross_entropy_weight: Share of the data's own cross-entropy in the loss, from 0 to 1;
                the divergence has the rest.
        """

        beta: UnitInterval = 0.0
        cross_entropy_weight: UnitInterval = 0.0

    def taught(self, batch: Mapping[str, Array]) -> tuple[Array, ...]:
        """Return arrays `[batch, time, ...]` of the teacher."""
        raise NotImplementedError(f"{type(self).__qualname__} has no taught")

    def divergences(
        self, logits: Float[Array, "batch places vocab"], *taught: Array
    ) -> Float[Array, "batch places"]:
        """Return the divergence of each token, in nats.

        Args:
            logits: The student's.
            *taught: What `taught` returned, at the same places.
        """
        raise NotImplementedError(f"{type(self).__qualname__} has no divergences")

    def forward(self, batch: Mapping[str, Array]) -> None:
        """Add the mean over tokens of both losses, `divergence` and `cross_entropy`."""
        model: Any = self.model  # one with `hidden` and `logits_of`, as `CausalLM` has
        hidden = model.hidden(batch["tokens"], packed_rows(batch))
        arrays: tuple[Array, ...] = (hidden, batch["targets"], *self.taught(batch))

        # Logits are there for some places at a time, and computed again in the backward pass: of
        # both models and all places they would take more memory than all else.
        @jax.checkpoint
        def of_some(hidden: Array, targets: Array, *taught: Array) -> tuple[Array, Array]:
            logits = model.logits_of(hidden)
            return self.divergences(logits, *taught), _cross_entropies(logits, targets)

        size, length = LOGITS_AT_ONCE, batch["tokens"].shape[1]
        parts = [
            of_some(*(one[:, begin : begin + size] for one in arrays))
            for begin in range(0, length, size)
        ]
        share, weights = self.config.cross_entropy_weight, batch["loss_weights"]
        names = {"divergence": 1 - share, "cross_entropy": share}
        for name, of_parts in zip(names, zip(*parts, strict=True), strict=True):
            self._add_mean(name, jnp.concatenate(of_parts, axis=1), weights, scale=names[name])

    def metric_units(self) -> Mapping[str, str]:
        """Return the units of both losses, of which the cross-entropy has a perplexity."""
        names = ("cross_entropy", "loss/cross_entropy")
        loss = "a token" if self.config.cross_entropy_weight else "nats of divergence a token"
        return {"loss": loss, **dict.fromkeys(names, NATS_A_TOKEN)}

    def check_batch(self, batch: BatchSpec) -> None:
        """Check that a batch is one of the model's own."""
        self.model.check_batch(batch)

    def _add_mean(
        self,
        name: str,
        values: Float[Array, "batch time"],
        weights: Float[Array, "batch time"],
        *,
        scale: float,
    ) -> None:
        # Padding may have any value, and 0 times infinity is nan.
        total, weight = jnp.sum(jnp.where(weights != 0, values * weights, 0)), jnp.sum(weights)
        if scale:
            self.add_loss(name, total, weight, scale=scale)
        else:
            self.add_measure(name, total, weight)


class Distill(DistillationTask):
    """Learns from a teacher that is in memory too, whose weights are frozen.

    Source: Hinton et al. 2015, arXiv:1503.02531, section 2; Agarwal et al. 2024, arXiv:2306.13649.
    Differs: The loss is not multiplied by the square of the temperature, as TRL has it.
    """

    @config
    class Config(DistillationTask.Config):
        """Describes `Distill`.

        Args:
            teacher: The model to learn from; it has the student's tokens.
            temperature: Both models' logits are divided by it.
        """

        teacher: FrozenModel.Config = REQUIRED
        temperature: PositiveFloat = 1.0

    def setup(self, cfg: Any) -> None:
        """Build both models."""
        super().setup(cfg)
        self.teacher = cfg.teacher.build()

    def taught(self, batch: Mapping[str, Array]) -> tuple[Array, ...]:
        """Return the teacher's hidden vectors."""
        return (self.teacher("hidden", batch["tokens"], packed_rows(batch)),)

    def divergences(
        self, logits: Float[Array, "batch places vocab"], *taught: Array
    ) -> Float[Array, "batch places"]:
        """Return the divergence of each token from the teacher."""
        cfg = self.config
        of_teacher = self.teacher("logits_of", *taught)
        student, teacher = (
            jax.nn.log_softmax(one / cfg.temperature, axis=-1) for one in (logits, of_teacher)
        )
        return divergence(student, teacher, cfg.beta)

    def flops_per_unit(self, batch: BatchSpec) -> ModelFlops | None:
        """Return what a token costs the student, and the teacher's forward pass."""
        return flops_with_teacher(self.model, self.teacher.model, batch)

    def check_batch(self, batch: BatchSpec) -> None:
        """Check that a batch is one of the model's own, and that both models have the same tokens.

        Raises:
            ConfigError: It is not, or they have not.
        """
        super().check_batch(batch)
        check_same_tokens(self.model, self.teacher.model)


def flops_with_teacher(student: Module, teacher: Module, batch: BatchSpec) -> ModelFlops | None:
    """Return what a unit costs a student, and a teacher that goes forward only."""
    own, other = (one.flops_per_unit(batch) for one in (student, teacher))
    if own is None or other is None:
        return None
    formula = f"{own.formula}, and a third of that of the teacher"
    return ModelFlops(own.per_unit + other.per_unit / 3, formula)


def check_same_tokens(student: Any, teacher: Any) -> None:
    """Check that two models have as many tokens.

    Raises:
        ConfigError: They have not.
    """
    own, other = student.config.vocab_size, teacher.config.vocab_size
    if own != other:
        grow = f"; or --modify grow_vocabulary --set model.vocab_size={other}"
        raise ConfigError(
            f"the student has {own:,} tokens and the teacher {other:,}; expected equal "
            "vocabularies",
            where="task.teacher.model.vocab_size",
            hint="take a teacher with the student's tokenizer" + (grow if own < other else ""),
        )


class DistillTopK(DistillationTask):
    """Learns from a teacher's likeliest tokens, which the batch has; there is no teacher in memory.

    All other tokens are one more outcome, whose probability is what is left of 1. So the loss is
    at most that of `Distill`, and equal to it where all tokens are among the likeliest.
    """

    @config
    class Config(DistillationTask.Config):
        """Describes `DistillTopK`."""

    def taught(self, batch: Mapping[str, Array]) -> tuple[Array, ...]:
        """Return the teacher's tokens and their log-probabilities."""
        return batch[TEACHER_TOKENS], batch[TEACHER_LOG_PROBS]

    def divergences(
        self, logits: Float[Array, "batch places vocab"], *taught: Array
    ) -> Float[Array, "batch places"]:
        """Return the divergence of each token from the teacher."""
        tokens, teacher = taught
        log_probs = jax.nn.log_softmax(logits, axis=-1)
        student = jnp.take_along_axis(log_probs, tokens, axis=-1)
        if tokens.shape[-1] < logits.shape[-1]:
            student, teacher = (
                jnp.concatenate([one, _log_rest(one)], axis=-1) for one in (student, teacher)
            )
        return divergence(student, teacher, self.config.beta)

    def check_batch(self, batch: BatchSpec) -> None:
        """Check that a batch is one of the model's own, with the teacher's tokens.

        Raises:
            ConfigError: It is not.
        """
        names = (TEACHER_TOKENS, TEACHER_LOG_PROBS)
        if missing := [name for name in names if name not in batch.arrays]:
            raise ConfigError(
                f"DistillTopK learns from {', '.join(names)}, and a batch has no "
                f"{', '.join(missing)}",
                where="data",
                hint="--modify 'distill_top_k(teacher_cache=FOLDER)', which `axcore data teach` "
                "writes",
            )
        own = {name: one for name, one in batch.arrays.items() if name not in names}
        super().check_batch(attrs.evolve(batch, arrays=own))


def _log_rest(log_probs: Float[Array, "*places K"]) -> Float[Array, "*places 1"]:
    """Return the logarithm of what probabilities leave of 1, or of float32's rounding."""
    total = jax.nn.logsumexp(log_probs, axis=-1, keepdims=True)
    # Sums may round to 1 and above, where the logarithm has no finite value and no gradient.
    return jnp.log(-jnp.expm1(jnp.minimum(total, -_SMALLEST)))


_SMALLEST = 2.0**-23
"""The distance of float32 numbers at 1."""


def _cross_entropies(
    logits: Float[Array, "batch places vocab"], targets: Int[Array, "batch places"]
) -> Float[Array, "batch places"]:
    # Not a gather: of logits that are sharded by vocabulary, it would need all of them.
    is_target = jax.nn.one_hot(targets, logits.shape[-1], dtype=bool)
    return jax.nn.logsumexp(logits, axis=-1) - jnp.sum(jnp.where(is_target, logits, 0), axis=-1)
