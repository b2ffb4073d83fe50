"""`RunWeights`: a run that begins with the weights of another run."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import attrs
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from axcore.checkpoint import Checkpointer
from axcore.checkpoint.leaves import LeafSpec
from axcore.config import REQUIRED, config
from axcore.errors import CheckpointError
from axcore.interop import (
    ArraySource,
    LeafOrigins,
    Origin,
    Slice,
    WeightPlan,
    WeightSource,
    canonical,
    check_same_model,
    join_adapters,
    named_specs,
    plan_weights,
    unstacked,
)
from axcore.modifiers.pretrained import InitialWeights
from axcore.runs.run import Run
from axcore.trainer.step import TrainState, TrainStep


class RunWeights(WeightSource):
    """The weights that another run has trained, verified as when that run resumes.

    They are the averages of its parameters where its learner's config evaluates those.
    """

    @config
    class Config(WeightSource.Config):
        """Which weights of which run.

        Args:
            path: The run directory.
            step: The checkpoint to use; by default the newest.
        """

        path: str = REQUIRED
        step: int | None = None

    folder_fields = ("path", "adapters")

    def plan(self, cfg: Any) -> WeightPlan:
        """Return what a model begins with; read no weights."""
        own: Any = self.config
        source = RunArrays.of(Run(own.path), own.step)
        models = source.model, cfg
        check_same_model(
            models, own.edits, may_differ=own.may_differ, normal=canonical, where=own.path
        )
        joined = join_adapters(source, own.adapters, models)
        return plan_weights(models, joined, selection=self.selection, edits=own.edits)


@config
class FromRun(InitialWeights):
    """Begins a run with the weights of another run; edits of them are further modifiers.

    Args:
        path: The run directory.
        step: The checkpoint to use; by default the newest.
    """

    source: ClassVar[type[WeightSource]] = RunWeights

    step: int | None = None


@attrs.frozen(slots=False)
class RunArrays(ArraySource):
    """The arrays of a checkpoint's model. Each leaf is read once, sharded, and left out of memory
    after its last use; what it becomes is computed on the devices.

    Args:
        directory: Of the run.
        checkpointer: Reads its steps.
        step: The step.
        model: The config of its model.
        saved: The name in the checkpoint of each leaf of the model's state.
    """

    directory: Path
    checkpointer: Checkpointer
    step: int
    model: Any
    saved: Mapping[str, str]

    @classmethod
    def of(cls, run: Run, step: int | None) -> "RunArrays":
        """Open a run's checkpoint, the newest where no step is given.

        Raises:
            CheckpointError: There is none, or it is not of the run's model.
        """
        cfg = run.opened_config
        checkpointer = Checkpointer.for_run(cfg.checkpoint, run.directory)
        found = checkpointer.latest() if step is None else step
        if found is None:
            raise CheckpointError(
                "the run has no checkpoint yet",
                where=str(run.directory),
                hint="train it for longer",
            )
        made = cls(run.directory, checkpointer, found, cfg.model, _saved_names(cfg))
        made._check_manifest()
        return made

    @cached_property
    def places(self) -> dict[str, Slice]:
        """The arrays of the model, by name."""
        return unstacked(self._specs)

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all arrays, by name."""
        specs = self._specs
        return {n: specs[one.leaf].shape[len(one.index) :] for n, one in self.places.items()}

    def described(self, names: Iterable[str]) -> str:
        """Return the leaves that arrays are in, the run and the step."""
        first, *others = dict.fromkeys(self.places[name].leaf for name in names)
        more = f" and {len(others)} more" if others else ""
        return f"{first}{more} ({self.directory}, step {self.step})"

    def check(self, names: Iterable[str]) -> None:
        """Check nothing more: the manifest was compared with the model."""

    def read(
        self, leaves: Mapping[str, LeafOrigins], wanted: Mapping[str, Any]
    ) -> Iterator[tuple[str, jax.Array]]:
        """Yield leaves in order, after every file of the step was compared with its record.

        Raises:
            DamagedCheckpointError: One is not what was saved.
            CheckpointError: Numbers are not finite in the dtype that is wanted.
        """
        self.checkpointer.verify_or_replace(self.step)
        uses = Counter(name for origins in leaves.values() for name in self._leaves_of(origins))
        held: dict[str, jax.Array] = {}
        for name, origins in leaves.items():
            sharding = wanted[name].sharding or jax.sharding.SingleDeviceSharding(
                jax.local_devices()[0]
            )
            used = self._leaves_of(origins)
            for leaf in used:
                if leaf not in held:
                    like = sharding if self._specs[leaf].shape == wanted[name].shape else None
                    held[leaf] = self._loaded(
                        leaf, like or spread(self._specs[leaf].shape, sharding)
                    )
            uses.subtract(used)
            array = self._made(name, origins, {n: held[n] for n in used}, wanted[name], sharding)
            if any(array is held[leaf] and uses[leaf] for leaf in used):
                array = array.copy()  # each leaf of a state is given away by itself
            yield name, array
            held = {leaf: array for leaf, array in held.items() if uses[leaf]}

    @cached_property
    def _specs(self) -> dict[str, Any]:
        return dict(named_specs(self.model.build().param_specs()))

    @cached_property
    def _saved_leaves(self) -> Mapping[str, LeafSpec]:
        return self.checkpointer.manifest(self.step).leaves

    def _leaves_of(self, origins: LeafOrigins) -> list[str]:
        return list(dict.fromkeys(self.places[one.source].leaf for one in origins.values()))

    def _loaded(self, leaf: str, sharding: Any) -> jax.Array:
        saved = self.saved[leaf]
        spec = self._saved_leaves[saved]
        wanted = jax.ShapeDtypeStruct(spec.shape, jnp.dtype(spec.dtype), sharding=sharding)  # type: ignore[no-untyped-call]
        return self.checkpointer.load(self.step, {saved: wanted})[saved]

    def _made(
        self,
        name: str,
        origins: LeafOrigins,
        held: dict[str, jax.Array],
        wanted: Any,
        sharding: Any,
    ) -> jax.Array:
        only = next(iter(held.values()))
        is_same = only.dtype == wanted.dtype and self._is_same(name, origins, wanted)
        if is_same and only.sharding.is_equivalent_to(sharding, only.ndim):
            return only

        def made(held: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
            array = _assembled(origins, self.places, held, wanted)
            return array, jnp.all(jnp.isfinite(array))

        array, is_finite = jax.jit(made, out_shardings=(sharding, None))(held)
        if not is_finite:
            raise CheckpointError(
                f"{name} contains numbers that are not finite in {wanted.dtype}",
                where=f"{self.directory}, step {self.step}",
                hint="ask for a dtype with a larger range",
            )
        finished: jax.Array = array
        return finished

    def _is_same(self, name: str, origins: LeafOrigins, wanted: Any) -> bool:
        """Whether a leaf is one of the source, as it is."""
        places = {index: self.places[one.source] for index, one in origins.items()}
        leaf = next(iter(places.values())).leaf
        num_stacked = len(next(iter(places)))
        return (
            self._specs[leaf].shape == wanted.shape
            and all(one == Slice(leaf, index) for index, one in places.items())
            and not any(one.changes for one in origins.values())
            and len(origins) == math.prod(wanted.shape[:num_stacked])
        )

    def _check_manifest(self) -> None:
        leaves = self._saved_leaves
        wrong = [
            name
            for name, saved in self.saved.items()
            if saved not in leaves or leaves[saved].shape != self._specs[name].shape
        ]
        if wrong:
            raise CheckpointError(
                f"step {self.step} does not hold {len(wrong)} arrays of the run's model as its "
                f"config has them: {wrong[0]} for one",
                where=str(self.directory),
                hint="open the run with the version of axcore and the plugins that trained it",
            )


def spread(shape: tuple[int, ...], like: Any) -> Any:
    """Return a sharding over the devices of another one, for an array of any shape.

    Each axis of the mesh splits the largest dimension that it still divides.
    """
    if not isinstance(like, NamedSharding):
        return like
    left = list(shape)
    names: list[list[str]] = [[] for _ in shape]
    for axis, size in like.mesh.shape.items():
        fitting = [i for i, length in enumerate(left) if length % size == 0 and length >= size]
        if size > 1 and fitting:
            chosen = max(fitting, key=lambda i: left[i])
            left[chosen] //= size
            names[chosen].append(axis)
    return NamedSharding(like.mesh, PartitionSpec(*(tuple(one) or None for one in names)))  # type: ignore[no-untyped-call]


def _assembled(
    origins: LeafOrigins,
    places: Mapping[str, Slice],
    held: Mapping[str, jax.Array],
    wanted: Any,
) -> jax.Array:
    """Return a leaf: its arrays taken from leaves of the source, changed and stacked.

    Arrays of one leaf to which the same is done are taken together, however many they are.
    """
    num_stacked = len(next(iter(origins)))
    shape = wanted.shape
    stacked, rest = shape[:num_stacked], shape[num_stacked:]
    groups: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
    examples: dict[tuple[Any, ...], Origin] = {}
    for index, origin in origins.items():
        place = places[origin.source]
        source = held[place.leaf]
        key = (place.leaf, len(place.index), origin.changes)
        at = (
            int(np.ravel_multi_index(place.index, source.shape[: len(place.index)]))
            if place.index
            else 0
        )
        into = int(np.ravel_multi_index(index, stacked)) if index else 0
        groups.setdefault(key, []).append((into, at))
        examples[key] = origin
    parts, into_places = [], []
    for (leaf, depth, changes), pairs in groups.items():
        source = held[leaf]
        flat = source.reshape(-1, *source.shape[depth:])
        taken = jnp.take(flat, np.array([at for _, at in pairs]), axis=0)
        made = jax.vmap(examples[leaf, depth, changes].made)(taken)
        parts.append(made.astype(wanted.dtype))
        into_places += [into for into, _ in pairs]
    whole = jnp.zeros((math.prod(stacked), *rest), wanted.dtype)
    return whole.at[np.array(into_places)].set(jnp.concatenate(parts)).reshape(shape)


def _saved_names(cfg: Any) -> dict[str, str]:
    """Return the name in a checkpoint of each leaf of the model, or of its average."""
    learner = cfg.learner.build(total_steps=cfg.max_steps)
    state = TrainStep(cfg.model.build(), learner).abstract_state()
    averages = TrainState(None, None, learner.evaluated_part(state.opt_state), None)  # type: ignore[arg-type]
    averaged = list(_names(averages))
    return {
        name: next((one for one in averaged if one.endswith(f".{name}")), f"model.{name}")
        for name in _names(state.model)
    }


def _names(tree: Any) -> Iterator[str]:
    for path, _ in jax.tree_util.tree_leaves_with_path(tree):
        yield jax.tree_util.keystr(path, simple=True, separator=".")
