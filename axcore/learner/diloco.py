"""`DiLoCo`: slices that train on their own, and synchronize every so many steps.

Shape letters: G groups, B rows of a batch.
"""

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from axcore.config import REQUIRED, Fraction, PositiveFloat, PositiveInt, config
from axcore.errors import ConfigError
from axcore.learner.learner import Learner, UpdateResult
from axcore.parallel import AnyMesh
from axcore.parallel.activations import active_mesh

if TYPE_CHECKING:
    import optax

SLICES = "data"
"""The mesh axis over which groups are split: the one across slices, where links are slow."""


class GroupsState(NamedTuple):
    """What groups keep for themselves `[G, ...]`, and what belongs to all.

    Args:
        params: The parameters of each group.
        inner: The state of each group's learner.
        takes_part: Whether each group was finite in all steps since the last outer step.
        outer: The state of the outer optimizer.
        num_steps: Inner steps done.
    """

    params: Any
    inner: Any
    takes_part: Bool[Array, " G"]
    outer: Any
    num_steps: Int[Array, ""]


class DiLoCo(Learner):
    """Groups that each train on their part of the batch, and synchronize every `sync_every` steps.

    A group takes steps of the inner learner, which is described as any other. Then the mean of what
    the groups moved is a gradient for the outer optimizer, SGD with Nesterov's momentum, and all
    begin again from the parameters that it gives. Between two such steps nothing but metrics
    crosses groups. The state of the inner optimizer stays with each group.

    A group whose loss, gradients or parameters are not finite in a step does not change in it, and
    is left out of the next outer step; then it begins with the others again.

    The model's state has the parameters of the last outer step: evaluation, exports and serving
    see these.

    Source: Douillard et al. 2023, arXiv:2311.08105, algorithm 1.
    """

    @config
    class Config(Learner.Config):
        """Describes a `DiLoCo`.

        Args:
            num_groups: Groups; a multiple of the mesh axis `data`.
            sync_every: Inner steps from one outer step to the next; the paper's H.
            outer_rate: Learning rate of the outer optimizer.
            outer_momentum: Its momentum.
        """

        num_groups: PositiveInt = REQUIRED
        sync_every: PositiveInt = 100
        outer_rate: PositiveFloat = 0.7
        outer_momentum: Fraction = 0.9

    config: Config

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        for name, is_on in (
            ("ema.decay", cfg.ema.decay is not None),
            ("skip_spikes.sigmas", cfg.skip_spikes.sigmas is not None),
        ):
            if is_on:
                raise ConfigError(
                    "groups that train apart have no average and no loss in common",
                    where=f"learner.{name}",
                    hint=f"--set learner.{name}=none",
                )
        if self._keeps_average:
            raise ConfigError(
                f"{type(self._optimizer).__qualname__} keeps an average, which would not know what "
                "groups that train apart synchronize",
                where="learner.optimizer",
                hint="train with AdamW",
            )

    @cached_property
    def _outer(self) -> "optax.GradientTransformation":
        import optax

        rate, momentum = self.config.outer_rate, self.config.outer_momentum
        return optax.sgd(rate, momentum=momentum, nesterov=True, accumulator_dtype=jnp.float32)

    def init(self, transformation: "optax.GradientTransformation", params: Any) -> Any:
        """Return the state before the first update, where all groups are alike."""
        groups = self._of_each(params)
        inner = jax.vmap(lambda own: super(DiLoCo, self).init(transformation, own))(groups)
        takes_part = jnp.ones(self.config.num_groups, bool)
        num_steps = jnp.zeros((), jnp.int32)
        return GroupsState(groups, inner, takes_part, self._outer.init(params), num_steps)

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
        """Return the gradients of each group's part of the batch by its own parameters `[G, ...]`.

        Raises:
            ConfigError: The batch, or the mesh, does not divide over the groups.
        """
        num_groups = self.config.num_groups
        rows = {leaf.shape[0] for leaf in jax.tree.leaves(batch)}
        if any(count % num_groups for count in rows):
            raise ConfigError(
                f"a batch of {min(rows)} rows does not divide over {num_groups} groups",
                where="learner.num_groups",
                hint="take a number that divides the batch",
            )

        def on_slice(groups: Any, batch: Any, numbers: Array, model: Any, key: Array) -> Any:
            # Blocks of rows: those of a slice are its groups' own.
            count = numbers.shape[0]
            split = jax.tree.map(
                lambda x: x.reshape(count, x.shape[0] // count, *x.shape[1:]), batch
            )

            def one(own: Any, rows: Any, number: Array) -> Any:
                return compute(own, model, rows, jax.random.fold_in(key, number))

            gradients, outputs, parts = jax.vmap(one)(groups, split, numbers)
            is_sound = _are_finite((gradients, outputs.losses))
            # `update` sees it there, too.
            return _where(is_sound, gradients, jnp.nan), outputs, parts, is_sound

        numbers = jnp.arange(num_groups)
        found = self._on_each_slice(on_slice, num_split=3)(
            opt_state.params, batch, numbers, model, key
        )
        gradients, outputs, parts, is_sound = found
        # Where none is left, the loss is not finite, and the step changes nothing.
        counts = is_sound | ~jnp.any(is_sound)
        losses, buffers = _where(counts, outputs.losses, 0), _of_others(counts, outputs.updates)
        merged = merge(attrs.evolve(outputs, losses=losses, updates=buffers))
        merged.summaries["learner/groups"] = jnp.sum(opt_state.takes_part & is_sound)
        return gradients, merged, _merged_parts(_where(counts, parts, 0))

    def update(
        self,
        transformation: "optax.GradientTransformation",
        gradients: Any,
        opt_state: Any,
        params: Any,
        *,
        loss: Float[Array, ""],
    ) -> UpdateResult:
        """Return the parameters of the last outer step, and the state; pure.

        The gradient norm is the largest of the groups that are finite.
        """
        inner_update = super().update

        def on_slice(gradients: Any, inner: Any, own: Any, loss: Array) -> Any:
            def one(gradients: Any, inner: Any, own: Any) -> UpdateResult:
                return inner_update(transformation, gradients, inner, own, loss=loss)

            found = jax.vmap(one)(gradients, inner, own)
            is_sound = _are_finite((found.gradient_norm, found.params))
            old, new = (own, inner), (found.params, found.opt_state)
            kept = jax.tree.map(lambda new, old: _where(is_sound, new, old), new, old)
            return *kept, _where(is_sound, found.gradient_norm, 0), is_sound

        groups, inner, norms, is_sound = self._on_each_slice(on_slice, num_split=3)(
            gradients, opt_state.inner, opt_state.params, loss
        )
        num_steps = opt_state.num_steps + 1
        params, groups, takes_part, outer = jax.lax.cond(
            num_steps % self.config.sync_every == 0,
            self._synchronize,
            lambda *same: same,
            params,
            groups,
            opt_state.takes_part & is_sound,
            opt_state.outer,
        )
        state = GroupsState(groups, inner, takes_part, outer, num_steps)
        return UpdateResult(params, state, jnp.max(norms), jnp.zeros((), bool))

    def _synchronize(
        self, params: Any, groups: Any, takes_part: Array, outer: Any
    ) -> tuple[Any, Any, Array, Any]:
        """Return the parameters after an outer step, and all that groups begin with again."""
        import optax

        count = jnp.sum(takes_part)

        def moved(own: Array, group: Array) -> Array:
            # In float32, also for narrower parameters: groups move little from one another.
            total = jnp.sum(_where(takes_part, group.astype(jnp.float32), 0), axis=0)
            mean = total / jnp.maximum(count, 1)
            return jnp.where(count > 0, own.astype(jnp.float32) - mean, 0)

        with jax.numpy_dtype_promotion("standard"):  # optax counts on it
            updates, outer = self._outer.update(jax.tree.map(moved, params, groups), outer, params)
            params = optax.apply_updates(params, updates)
        return params, self._of_each(params), jnp.ones_like(takes_part), outer

    def _of_each(self, params: Any) -> Any:
        """Return parameters once for each group."""
        # A copy of each: the step donates its state, and a buffer cannot be donated twice.
        count = self.config.num_groups
        return jax.tree.map(lambda p: jnp.repeat(p[None], count, axis=0), params)

    def _on_each_slice(self, fn: Callable[..., Any], *, num_split: int) -> Callable[..., Any]:
        """Return a function whose first arguments `[G, ...]` each slice has its own part of."""
        mesh = active_mesh()
        if mesh is None or mesh.shape.get(SLICES, 1) == 1:
            return fn
        self._check_fits(mesh)

        def mapped(*args: Any) -> Any:
            own, all_of_it = PartitionSpec(SLICES), PartitionSpec()  # type: ignore[no-untyped-call]
            specs = tuple(own if place < num_split else all_of_it for place in range(len(args)))
            # By hand over slices only: the compiler then sees no array that crosses them, and
            # splits the work within a slice as it would on a mesh without that axis.
            split: Any = jax.shard_map(
                fn,
                mesh=mesh,
                in_specs=specs,
                out_specs=own,
                axis_names={SLICES},
                check_vma=False,
            )
            return split(*args)

        return mapped

    def _check_fits(self, mesh: AnyMesh) -> None:
        others = [axis for axis, size in mesh.shape.items() if size > 1 and axis != SLICES]
        if len(others) > 1:
            # It would end the process: a failed check of its partitioner, on some of such meshes.
            raise ConfigError(
                f"within a slice the mesh has the axes {', '.join(others)}; XLA cannot split a "
                "slice over more than one axis while slices train on their own",
                where="mesh",
                hint=f"use {SLICES!r} and one other axis, as in "
                f'--set \'mesh={{"{SLICES}": {mesh.shape[SLICES]}, "fsdp": -1}}\'',
            )
        if self.config.num_groups % mesh.shape[SLICES]:
            raise ConfigError(
                f"{self.config.num_groups} groups do not divide over {mesh.shape[SLICES]} parts of "
                f"the mesh axis {SLICES!r}",
                where="learner.num_groups",
                hint=f"--set learner.num_groups={mesh.shape[SLICES]}",
            )


def norms_error() -> ConfigError:
    """Return the error of a config that measures gradients by module, where each group has one."""
    return ConfigError(
        "gradient norms by module are measured of one gradient, and each group has its own",
        where="logging.gradient_norms_every_steps",
        hint="--set logging.gradient_norms_every_steps=0",
    )


def _merged_parts(parts: tuple[Array, Array] | None) -> tuple[Array, Array] | None:
    """Return what kinds of rows add to the loss, and their weights, from those `[G, kinds]`."""
    if parts is None:
        return None
    loss_GS, weight_GS = parts
    # Each group's add up to its own mean; together they are to add up to the mean of all.
    weight_G = jnp.sum(weight_GS, axis=1)
    loss_S = weight_G @ loss_GS / jnp.sum(weight_G)
    return loss_S, jnp.sum(weight_GS, axis=0)


def _are_finite(tree: Any) -> Bool[Array, " G"]:
    """Whether all numbers `[G, ...]` of each group are finite."""
    leaves = jax.tree.leaves(tree)
    found = [jnp.all(jnp.isfinite(leaf), axis=range(1, leaf.ndim)) for leaf in leaves]
    return jnp.all(jnp.stack(found), axis=0)


def _where(is_wanted: Bool[Array, " G"], tree: Any, other: Any) -> Any:
    """Return a tree of arrays `[G, ...]` with another value for groups that are not wanted."""
    return jax.tree.map(
        lambda leaf: jnp.where(
            is_wanted.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, jnp.asarray(other, leaf.dtype)
        ),
        tree,
    )


def _of_others(is_wanted: Bool[Array, " G"], tree: Any) -> Any:
    """Return a tree of arrays `[G, ...]` in which groups not wanted have the mean of the others."""

    def filled(leaf: Array) -> Array:
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            return leaf
        mean = jnp.sum(_where(is_wanted, leaf, 0), axis=0) / jnp.sum(is_wanted, dtype=leaf.dtype)
        found: Array = _where(is_wanted, leaf, mean)
        return found

    return jax.tree.map(filled, tree)
