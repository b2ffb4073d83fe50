"""The train step and the evaluation step: pure functions of state and batch.

Losses are sums with weights, and weights do not depend on parameters. So a batch may be run in
micro-batches whose gradients add up to exactly those of the whole: a first pass that computes
weights only, which the compiler reduces to counting, gives every micro-batch its denominator.
"""

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from axcore.errors import ModuleError
from axcore.learner import DiLoCo, Learner
from axcore.learner.diloco import norms_error
from axcore.module import (
    Loss,
    LossGroups,
    Module,
    Outputs,
    ParamSpec,
    Path,
    apply_updates,
    functional,
    merge_outputs,
    split_microbatches,
)
from axcore.module.param import Stacked
from axcore.module.rng import format_path
from axcore.plugins import of_plugin
from axcore.trainer.callbacks.metrics import summary_metrics

Batch = Mapping[str, Array]


GradientSplit = Callable[[Any, Any], Any]
"""`(gradients, specs) -> gradients`: the same numbers, split over devices."""

_Gradients = tuple[Any, Outputs, tuple[Array, Array] | None]


class TrainState(NamedTuple):
    """All that a run carries from step to step.

    Args:
        step: Number of steps done.
        model: The model's state, parameters and buffers.
        opt_state: The optimizer's state.
        skipped: Number of steps that changed nothing: their loss, gradients or new parameters were
            not finite, or their loss was a spike.
    """

    step: Array
    model: Any
    opt_state: Any
    skipped: Array


class StepMetrics(NamedTuple):
    """What a step reports of itself; `group_losses` has sums and weights `[groups]`, if any.

    `gradient_norms` is empty unless they are measured by module.
    """

    losses: dict[str, Loss]
    group_losses: Loss | None
    summaries: dict[str, Array]
    gradient_norm: Array
    gradient_norms: dict[str, Array]
    is_finite: Array
    is_applied: Array


PREFIX = "gradient_norm/"


_TOP = 2
"""How many names the path of a module that is in no layer has at most."""


class GradientNorms:
    """Measures gradients at some steps; at none where `every_steps` is 0.

    Args:
        specs: Of all that the step's state holds; what is not trained has no gradient.
        every_steps: Steps from one measurement to the next.
    """

    def __init__(self, specs: Any, every_steps: int) -> None:
        self.every_steps = every_steps
        leaves = jax.tree.leaves(specs, is_leaf=lambda leaf: isinstance(leaf, ParamSpec))
        trained = [spec for spec in leaves if spec.is_trainable]
        self._groups = [_group_of(spec) for spec in trained] if every_steps else []

    def __call__(self, gradients: Any, step: Array) -> dict[str, Float[Array, "..."]]:
        """Return the norms of gradients, an array over layers where those are stacked.

        They are zeros at a step that is not measured, which costs nothing.
        """
        if not self.every_steps:
            return {}
        leaves = jax.tree.leaves(gradients)
        is_due = step % self.every_steps == 0
        # A cond, not a where: sums over all gradients read each of them once more.
        norms: dict[str, Array] = jax.lax.cond(is_due, self._norms, self._zeros, leaves)
        return norms

    def metrics(self, step: int, norms: Mapping[str, Any]) -> dict[str, float]:
        """Return the metrics of a step's norms; none of a step that is not measured."""
        if not self.every_steps or step % self.every_steps:
            return {}
        return summary_metrics(norms)

    def _norms(self, leaves: list[Array]) -> dict[str, Array]:
        squares: dict[str, Array] = {}
        for (name, num_stacked), leaf in zip(self._groups, leaves, strict=True):
            # Squares of bfloat16 lose all but 8 bits, and those of float16 overflow at 256.
            wide = leaf.astype(jnp.float32)
            found = jnp.sum(wide * wide, axis=tuple(range(num_stacked, leaf.ndim)))
            squares[name] = found + squares[name] if name in squares else found
        return {name: jnp.sqrt(found) for name, found in squares.items()}

    def _zeros(self, leaves: list[Array]) -> dict[str, Array]:
        return {
            name: jnp.zeros(leaf.shape[:num_stacked])
            for (name, num_stacked), leaf in zip(self._groups, leaves, strict=True)
        }


def _group_of(spec: ParamSpec) -> tuple[str, int]:
    """Return the metric that a gradient counts for, and over how many dimensions of stacks."""
    within = _steps_of_layer(spec.path) or min(_TOP, len(spec.path) - 1)
    layer = spec.path[:within]
    name = format_path(tuple(step for step in layer if not isinstance(step, Stacked)))
    return PREFIX + name, sum(len(step.shape) for step in layer if isinstance(step, Stacked))


def _steps_of_layer(path: tuple[str | int | Stacked, ...]) -> int:
    """Return how many steps of a path lead to a layer; 0 where there is none.

    A layer is what the first number of the path counts. Where layers alternate, the number in the
    period comes right after; what a layer itself holds many of, as experts, is a part of it.
    """
    places = [place for place, step in enumerate(path) if not isinstance(step, str)]
    end = 0
    # A number directly behind the first is the place within
    # a period; one further down counts parts of a layer.
    for place in places:
        if end and place > end + 1:
            break
        end = place + 1
    return end


class TrainStep:
    """The step of one model and learner; call it under `jax.jit`."""

    def __init__(
        self,
        model: Module,
        learner: Learner,
        *,
        seed: int = 0,
        num_micro_batches: int = 1,
        loss_groups: LossGroups | None = None,
        norms_every_steps: int = 0,
        split_gradients: GradientSplit | None = None,
    ) -> None:
        self.model = model
        self.learner = learner
        self.own_specs = learner.with_frozen(model.param_specs())
        self.specs = {**self.own_specs, **model.kept_specs(self.own_specs)}
        self.seed = seed
        self.num_micro_batches = num_micro_batches
        self.loss_groups = loss_groups
        self._split_gradients = split_gradients or (lambda gradients, specs: gradients)
        self.transformation = learner.transformation(_trainable(self.specs, self.specs))
        if norms_every_steps and isinstance(learner, DiLoCo):
            raise norms_error()
        self.norms = GradientNorms(self.specs, norms_every_steps)

    def init(self) -> TrainState:
        """Return the state before the first step."""
        return self.first_state(self.model.init(jax.random.key(self.seed)))

    # The model's init may take minutes to trace, and reads no shape that its specs do not have.
    def abstract_state(self) -> TrainState:
        """Return shapes and dtypes of the state, without tracing how the model begins."""
        model = jax.tree.map(lambda spec: spec.abstract, self.own_specs, is_leaf=_is_spec)
        state: TrainState = jax.eval_shape(self.first_state, model)
        return state

    def __call__(self, state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        """Return the state after one step, and the step's metrics.

        The learning rate is that of the updates made so far: a step that is skipped does not move
        the optimizer's schedule on.

        A step whose loss or gradient norm is not finite, or whose loss is a spike to the learner,
        leaves model and optimizer as they were. So does one that would make a parameter not finite.
        """
        key = self._key(state.step)
        params = _trainable(state.model, self.specs)
        gradients, outputs, group_parts = self.learner.gradients(
            lambda params, model, rows, key: self._gradients(
                _merged(params, model, self.specs), rows, key
            ),
            lambda stacked: merge_outputs(stacked, self.specs),
            state.model,
            params,
            state.opt_state,
            batch,
            key,
        )
        with jax.named_scope("learner"):
            # Only its total: what guards against spikes is the loss that is minimised.
            update = self.learner.update(
                self.transformation, gradients, state.opt_state, params, loss=outputs.total_loss()
            )
            norms = self.norms(gradients, state.step + 1)
        is_finite = jnp.isfinite(outputs.total_loss()) & jnp.isfinite(update.gradient_norm)
        # Finite gradients may give an update that is not: a parameter may overflow its dtype.
        # On the new parameters, after the cast to their dtype.
        is_finite &= _are_finite(update.params)
        is_applied = is_finite & ~update.is_spike
        new_model = apply_updates(_merged(update.params, state.model, self.specs), outputs.updates)
        # `where`, not `cond`: the update is computed either way, and the choice is fused into it.
        unless_skipped = lambda new, old: jnp.where(is_applied, new, old)  # noqa: E731
        new_state = TrainState(
            # Counts skipped steps as well: it is the position in
            # the data and the random key, and both have moved on.
            step=state.step + 1,
            model=jax.tree.map(unless_skipped, new_model, state.model),
            opt_state=jax.tree.map(unless_skipped, update.opt_state, state.opt_state),
            skipped=state.skipped + jnp.where(is_applied, 0, 1),
        )
        metrics = StepMetrics(
            losses=outputs.losses,
            group_losses=_losses_of_groups(group_parts),
            summaries=outputs.summaries,
            gradient_norm=update.gradient_norm,
            gradient_norms=norms,
            is_finite=is_finite,
            is_applied=is_applied,
        )
        return new_state, metrics

    def gradients(self, model_state: Any, batch: Batch, step: Array) -> tuple[Any, Array]:
        """Return the gradients of one step, None for what is not trained, and its total loss."""
        gradients, outputs, _ = self._gradients(model_state, batch, self._key(step))
        return gradients, outputs.total_loss()

    def _key(self, step: Array) -> Array:
        # `seed` itself gives the initial values, which dropout must not follow. The key depends on
        # the step alone, so a run that resumes uses the keys of one without an interruption, and
        # no key in the state can be restored wrongly.
        return jax.random.fold_in(jax.random.key(self.seed + 1), step)

    def first_state(self, model: Any) -> TrainState:
        """Return the state before the first step, given that of the model."""
        # What a task adds to the state comes from the model's first state, so it is made after it.
        model = {**model, **self.model.kept_state(model, self.own_specs)}
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            model=model,
            opt_state=self.learner.init(self.transformation, _trainable(model, self.specs)),
            skipped=jnp.zeros((), jnp.int32),
        )

    def own_part(self, model_state: Any) -> Any:
        """Return the state of the model alone, without what a task adds."""
        return {name: model_state[name] for name in self.own_specs}

    def trained_part(self, tree: Any) -> Any:
        """Return a tree of the model's state with None for what is not trained."""
        return _trainable(tree, self.specs)

    def kept_part(self, model_state: Any) -> Any:
        """Return what a task adds to the state of the model."""
        return {name: one for name, one in model_state.items() if name not in self.own_specs}

    def evaluated_model(self, state: TrainState) -> Any:
        """Return the model's state to evaluate: with averages if the learner evaluates them."""
        params = _trainable(state.model, self.specs)
        return _merged(
            self.learner.evaluated_params(state.opt_state, params), state.model, self.specs
        )

    def evaluate(self, model_state: Any, batch: Batch) -> tuple[dict[str, Loss], dict[str, Array]]:
        """Return the losses of a batch outside of training, and what is captured of its rows."""
        measure = self.model.row_measure()
        read = _without_groups(batch, self.loss_groups)
        wanted = measure.captures if measure else ()
        _, outputs = functional(self.model, model_state, read, capture=wanted)
        return outputs.losses, outputs.captures

    def _gradients(self, model_state: Any, batch: Batch, key: Array) -> _Gradients:
        if self.num_micro_batches == 1:
            return self._micro_gradients(model_state, batch, key, None)
        return self._accumulated(model_state, batch, key)

    def _micro_gradients(
        self, model_state: Any, batch: Batch, key: Array, weights: dict[str, Array] | None
    ) -> _Gradients:
        groups = self.loss_groups
        read = _without_groups(batch, groups)
        token_weights = {} if groups is None else {groups.weights: read[groups.weights]}

        def loss(params: Any, token_weights: dict[str, Array]) -> tuple[Array, Outputs]:
            state = _merged(params, model_state, self.specs)
            # As an argument of its own, so that there is a gradient by it.
            inputs = {**read, **token_weights} if token_weights else read
            _, outputs = functional(self.model, state, inputs, rng=key, training=True)
            if not any(one.scale for one in outputs.losses.values()):
                raise _nothing_minimised(self.model)
            return _minimised(outputs.losses, weights), outputs

        differentiated = _chosen(model_state, self.specs, _has_gradient)
        # The gradient by the weight of a token is its loss, so groups cost no second pass.
        (gradients, by_weight), outputs = jax.grad(loss, argnums=(0, 1), has_aux=True)(
            differentiated, token_weights
        )
        # Buffers such as the scales of float8 are delivered
        # as gradients, the one way out of a custom_vjp.
        outputs.updates.update(_measured(gradients, self.specs))
        parts = None
        if groups is not None:
            parts = _parts_of_groups(batch, by_weight[groups.weights], groups)
        return self._split(_trainable(gradients, self.specs)), outputs, parts

    def _split(self, gradients: Any) -> Any:
        """Return gradients split over devices as the optimizer takes them."""
        return self._split_gradients(gradients, self.specs)

    def _accumulated(self, model_state: Any, batch: Batch, key: Array) -> _Gradients:
        count = self.num_micro_batches
        # Rows are dealt out so that each device keeps its own (see `split_microbatches`).
        micro = jax.tree.map(lambda x: split_microbatches(x, count), batch)
        # A key for each part, or dropout would repeat its masks in all of them.
        keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(count))

        # One more forward pass, of which only the weights are used; XLA drops
        # what they do not depend on. Without the weights of the full batch,
        # parts with few tokens would count as much as those with many.
        def weights_of(inputs: Any) -> dict[str, Array]:
            one, one_key = inputs
            read = _without_groups(one, self.loss_groups)
            _, outputs = functional(self.model, model_state, read, rng=one_key, training=True)
            return {name: loss.weight for name, loss in outputs.losses.items()}

        # `map`, one part after the other: all at once would
        # need the memory that micro-batches are there to save.
        weights = jax.tree.map(lambda w: jnp.sum(w, axis=0), jax.lax.map(weights_of, (micro, keys)))

        def step(total: Any, inputs: Any) -> tuple[Any, Any]:
            one, one_key = inputs
            gradients, *others = self._micro_gradients(model_state, one, one_key, weights)
            # Added in the dtype of the sum, see `_sum_dtype`.
            return jax.tree.map(lambda t, g: t + g.astype(t.dtype), total, gradients), others

        params = _trainable(model_state, self.specs)
        # The sums are split from the start: full ones would not fit where only the optimizer's
        # state is split.
        zeros = self._split(jax.tree.map(lambda p: jnp.zeros(p.shape, _sum_dtype(p)), params))
        total, (outputs, parts) = jax.lax.scan(step, zeros, (micro, keys))
        gradients = jax.tree.map(lambda t, p: t.astype(p.dtype), total, params)
        parts = jax.tree.map(lambda part: jnp.sum(part, axis=0), parts)
        return gradients, merge_outputs(outputs, self.specs), parts


def _nothing_minimised(model: Module) -> ModuleError:
    cls = type(model)
    return ModuleError(
        f"{cls.__module__}:{cls.__qualname__}{of_plugin(model)} adds no loss that is minimised: "
        "nothing would be trained",
        hint="call self.add_loss(NAME, SUM, WEIGHT) in its forward, with a scale that is not 0",
    )


def _minimised(losses: dict[str, Loss], weights: dict[str, Array] | None) -> Array:
    """Return what a batch adds to the loss that is minimised; weights count as constants.

    Args:
        losses: The losses of a batch, or of a part of it.
        weights: The weights of the full batch; None where `losses` are of all of it.
    """
    whole = {
        name: Loss(
            loss.sum,
            # A constant: the gradient of a mean by its own weight is not what is minimised.
            jax.lax.stop_gradient(loss.weight if weights is None else weights[name]),
            loss.scale,
            loss.is_regularizer,
        )
        for name, loss in losses.items()
    }
    return Outputs(losses=whole).total_loss()


def _are_finite(params: Any) -> Array:
    return functools.reduce(
        operator.and_, (jnp.all(jnp.isfinite(p)) for p in jax.tree.leaves(params))
    )


def _sum_dtype(param: Array) -> Any:
    # bfloat16 sums stop growing after some hundred parts; float64 stays what it is.
    return param.dtype if param.dtype.itemsize > 4 else jnp.float32


def _trainable(tree: Any, specs: Any) -> Any:
    """Return the tree with None in the place of buffers, which jax leaves out."""
    return _chosen(tree, specs, lambda spec: spec.is_trainable)


def _has_gradient(spec: ParamSpec) -> bool:
    return spec.is_trainable or spec.is_overwritten_by_gradient


def _chosen(tree: Any, specs: Any, is_wanted: Callable[[ParamSpec], bool]) -> Any:
    """Return the tree with None in the place of what is not wanted."""
    return jax.tree.map(
        lambda spec, leaf: leaf if is_wanted(spec) else None, specs, tree, is_leaf=_is_spec
    )


def _measured(gradients: Any, specs: Any) -> dict[Path, Array]:
    """Return the next values of the buffers that are their own gradients."""
    chosen = _chosen(gradients, specs, lambda spec: spec.is_overwritten_by_gradient)
    pairs = zip(
        jax.tree.leaves(specs, is_leaf=_is_spec),
        jax.tree.leaves(chosen, is_leaf=lambda leaf: leaf is None),
        strict=True,
    )
    return {spec.state_path: leaf for spec, leaf in pairs if leaf is not None}


def _merged(new: Any, state: Any, specs: Any) -> Any:
    """Return the state with what is not None in `new` in its place."""
    return jax.tree.map(
        lambda spec, new, old: old if new is None else new,
        # `None` is a tree without leaves to jax, so it
        # must be named a leaf to be seen in its place.
        specs,
        new,
        state,
        is_leaf=lambda leaf: leaf is None or _is_spec(leaf),
    )


def _is_spec(leaf: Any) -> bool:
    return isinstance(leaf, ParamSpec)


def _without_groups(batch: Any, groups: LossGroups | None) -> Any:
    """Return what a model reads of a batch."""
    if groups is None:
        return batch
    return {name: array for name, array in batch.items() if name != groups.array}


def _parts_of_groups(
    batch: Batch, gradient_BT: Float[Array, "batch time"], groups: LossGroups
) -> tuple[Float[Array, " groups"], Float[Array, " groups"]]:
    """Return what each group adds to the loss that is minimised, and its weight; both add up.

    Args:
        batch: A batch or a part of one.
        gradient_BT: Of the loss of the full batch, by the weights of the tokens.
        groups: Which rows are of which group.
    """
    weights_BT = batch[groups.weights].astype(jnp.float32)
    # 0 times an infinite gradient would be nan, and tokens of weight 0 may have any.
    losses_BT = jnp.where(weights_BT != 0, weights_BT * gradient_BT.astype(jnp.float32), 0)
    is_of_BS = jax.nn.one_hot(batch[groups.array], len(groups.names), dtype=jnp.float32)
    parts = (jnp.sum(rows, axis=1) @ is_of_BS for rows in (losses_BT, weights_BT))
    loss_S, weight_S = parts
    return loss_S, weight_S


def _losses_of_groups(parts: tuple[Array, Array] | None) -> Loss | None:
    """Return sums and weights `[groups]` of a full batch; None where there are no groups."""
    if parts is None:
        return None
    loss_S, weight_S = parts
    # The parts are of a mean, since the gradient is of the
    # mean; times the full weight they are sums again.
    return Loss(loss_S * jnp.sum(weight_S), weight_S)


def task_of(cfg: Any) -> Any:
    """Return the module that adds a trainer's losses."""
    return cfg.model.build() if cfg.task is None else cfg.task.build(model=cfg.model)
