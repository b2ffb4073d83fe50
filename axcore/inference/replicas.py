"""`Replicas`: one engine for each place on a mesh's data axis, in front of them one interface."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Self, cast

import attrs
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from axcore.data import Tokenizer
from axcore.errors import AxcoreError, ConfigError, EngineError
from axcore.inference.adapters import Adapter
from axcore.inference.answer import Answer
from axcore.inference.cached_model import mesh_of
from axcore.inference.config import EngineConfig
from axcore.inference.engine import Engine
from axcore.inference.engine_adapters import EngineAdapter
from axcore.inference.engine_room import on_mesh
from axcore.inference.engine_stats import EngineStats, summed
from axcore.inference.replica_choice import SentPrompts, by_preference
from axcore.inference.request import Draining, QueueFull, Request
from axcore.inference.speculation import Draft
from axcore.inference.warm_up import Progress
from axcore.module import Module

REPLICAS = "data"
"""The mesh axis along which there are replicas."""


def open_engine(
    model: Module,
    state: Any,
    tokenizer: Tokenizer,
    cfg: EngineConfig = EngineConfig(),  # noqa: B008 - a frozen value
    *,
    mesh: Mesh | None = None,
    draft: Draft | None = None,
) -> "AnyEngine":
    """Returns an engine on a mesh, or replicas where its data axis is longer than 1.

    Args:
        model: See `Engine`.
        state: See `Engine`; it is put on the mesh.
        tokenizer: See `Engine`.
        cfg: Of each engine.
        mesh: By default the one that the state lies on.
        draft: See `Engine`.

    Raises:
        ConfigError: The config does not fit the model, or itself.
        ShardingError: The model does not divide over the mesh.
    """
    found = mesh_of(state) if mesh is None else mesh
    if found is not None and found.shape.get(REPLICAS, 1) > 1:
        return Replicas(model, state, tokenizer, cfg, mesh=found, draft=draft)
    placed = state if mesh is None else on_mesh(model, state, mesh)
    return Engine(model, placed, tokenizer, cfg, draft=draft)


class Replicas:
    """Answers requests by several engines, each on its own devices with all of the weights.

    A request goes to the replica with a free slot that was sent most of its prompt's first pages,
    to the freest of those where several were; where no slot is free, to the freest replica.

    Args:
        model: See `Engine`.
        state: See `Engine`; it is put on the mesh.
        tokenizer: See `Engine`.
        cfg: Of each replica: there are as many slots, pages and places in queues for each.
        mesh: Has a replica for each place along `data`.
        draft: See `Engine`; each replica has all of its weights, too.

    Raises:
        ConfigError: The config does not fit the model, or itself.
        ShardingError: The model does not divide over the mesh.
    """

    def __init__(
        self,
        model: Module,
        state: Any,
        tokenizer: Tokenizer,
        cfg: EngineConfig = EngineConfig(),  # noqa: B008 - a frozen value
        *,
        mesh: Mesh,
        draft: Draft | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._model, self._mesh = model, mesh
        self._meshes = replica_meshes(mesh)
        drafts = self._drafts(draft)
        self._engines = tuple(
            Engine(model, part, tokenizer, cfg, draft=own)
            for part, own in zip(self._parts(model, state), drafts, strict=True)
        )
        self._adapters: dict[str, EngineAdapter] = {}
        self.max_length = self._engines[0].max_length
        self.config = self._engines[0].config
        self._sent = tuple(
            SentPrompts(page_size=one.config.page_size or one.max_length, most=stats.pages_total)
            for one in self._engines
            for stats in (one.stats(),)
        )
        self._choosing, self._changing = threading.Lock(), threading.Lock()
        self._is_draining = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def warm_up(
        self,
        progress: Progress | None = None,
        *,
        when_all: Callable[[Exception | None], None] | None = None,
    ) -> None:
        """Compiles the programs of all replicas; see `Engine.warm_up`."""
        count = len(self._engines)
        when_one = None if when_all is None else _after(count, when_all)
        for index, engine in enumerate(self._engines):

            def say(done: int, total: int, name: str, index: int = index) -> None:
                if progress is not None:
                    progress(index * total + done, count * total, f"{name}, replica {index}")

            engine.warm_up(say, when_all=when_one)

    @property
    def error(self) -> EngineError | None:
        """Why a replica answers nothing any more; None while no step of any has failed."""
        return next((one.error for one in self._engines if one.error is not None), None)

    def submit(self, request: Request) -> Answer:
        """Takes a request; returns at once.

        Raises:
            RequestError: It can never be answered.
            QueueFull: Too many requests wait at every replica.
            Draining: The replicas take no more.
            EngineError: They are closed, or a step of one failed.
        """
        with self._choosing:
            if self.error is not None:
                raise self.error
            if self._is_draining:
                raise Draining("the replicas finish what they have and take no new requests")
            return self._submit(request)

    def stats(self) -> EngineStats:
        """Returns what all replicas do now, together."""
        return summed([one.stats() for one in self._engines])

    def replica_stats(self) -> tuple[EngineStats, ...]:
        """Returns what each replica does now, in the order of the data axis."""
        return tuple(one.stats() for one in self._engines)

    def replace_weights(self, state: Any) -> None:
        """Takes over another state of the model, one replica after the other; returns when all did.

        Raises:
            ConfigError: Its arrays are of another type, or lie elsewhere.
            ModuleError: It is not of this model: an array is missing, or has another shape.
            EngineError: A replica is closed, or a step failed.
        """
        with self._changing:
            for engine, part in zip(self._engines, self._parts(self._model, state), strict=True):
                engine.replace_weights(part)
            with self._choosing:
                for sent in self._sent:
                    sent.forget()

    def add_adapter(self, name: str, adapter: Adapter) -> None:
        """Lets requests choose an adapter by its name; see `Engine.add_adapter`.

        All replicas have it, or none. New requests wait until they do.

        Raises:
            ConfigError: A replica has no room for one more.
            ModuleError: It corrects layers that have no room, or has a larger rank.
            EngineError: A replica is closed, or a step failed.
        """
        converted = self._engines[0].converted(adapter)
        with self._changing, self._choosing:
            changed: list[Engine] = []
            try:
                for engine in self._engines:
                    engine.set_adapter(name, converted)
                    changed.append(engine)
            except AxcoreError:
                self._restore_adapter(name, changed)
                raise
            self._adapters[name] = converted

    def remove_adapter(self, name: str) -> None:
        """Refuses new requests with an adapter; those that there are keep it to their end.

        Raises:
            ConfigError: There is none of that name.
            EngineError: A replica is closed, or a step failed.
        """
        with self._changing, self._choosing:
            for engine in self._engines:
                engine.remove_adapter(name)
            del self._adapters[name]

    def drain(self) -> None:
        """Refuses new requests, and returns when those that there are have been answered."""
        with self._choosing:
            self._is_draining = True
        for engine in self._engines:
            engine.drain()

    def close(self) -> None:
        """Ends all answers and the replicas' threads."""
        for engine in self._engines:
            engine.close()

    def _submit(self, request: Request) -> Answer:
        """Takes a request at the replica that is preferred among those whose queue has room."""
        digests = self._sent[0].digests(request.prompt, request.adapter)
        held = [sent.num_first(digests) for sent in self._sent]
        full: QueueFull | None = None
        for index in by_preference(self.replica_stats(), held):
            try:
                answer = self._engines[index].submit(request)
            except QueueFull as error:
                full = error
                continue
            self._sent[index].add(digests)
            return answer
        assert full is not None
        raise full

    def _restore_adapter(self, name: str, engines: Sequence[Engine]) -> None:
        """Gives engines back what had the name of an adapter before."""
        before = self._adapters.get(name)
        for engine in engines:
            if before is None:
                engine.remove_adapter(name)
            else:
                engine.set_adapter(name, before)

    def _drafts(self, draft: Draft | None) -> list[Draft | None]:
        """Returns the draft of each replica, on its own devices."""
        if draft is None:
            return [None] * len(self._meshes)
        parts = self._parts(draft.model, draft.state)
        return [attrs.evolve(draft, state=part) for part in parts]

    def _parts(self, model: Module, state: Any) -> list[Any]:
        """Returns a model's state for each replica, on its own devices."""
        placed = state
        if mesh_of(state) != self._mesh:
            try:
                placed = on_mesh(model, state, self._mesh)
            except ValueError as error:
                raise ConfigError(
                    f"the arrays are not those of the model: {error}",
                    hint="give a state of the same model",
                ) from error
        return [
            jax.tree.map(lambda leaf, own=own: _part(leaf, own), placed) for own in self._meshes
        ]


AnyEngine = Engine | Replicas


def replica_meshes(mesh: Mesh) -> tuple[Mesh, ...]:
    """Returns the mesh of each replica, whose data axis has one place."""
    axis = mesh.axis_names.index(REPLICAS)
    return tuple(
        Mesh(np.take(mesh.devices, [place], axis), mesh.axis_names, axis_types=mesh.axis_types)
        for place in range(mesh.shape[REPLICAS])
    )


def _part(leaf: jax.Array, mesh: Mesh) -> jax.Array:
    """Returns an array on some devices of its mesh; what these have of it is not copied."""
    assert isinstance(leaf.sharding, NamedSharding)
    lies = NamedSharding(mesh, leaf.sharding.spec)
    wanted = lies.addressable_devices_indices_map(leaf.shape)
    there = {shard.device: shard for shard in leaf.addressable_shards}
    if any(there[device].index != index for device, index in wanted.items()):
        return cast(jax.Array, jax.device_put(leaf, lies))
    parts = [there[device].data for device in wanted]
    return jax.make_array_from_single_device_arrays(leaf.shape, lies, parts)


def _after(
    count: int, when_all: Callable[[Exception | None], None]
) -> Callable[[Exception | None], None]:
    """Returns what calls a function at the last of so many calls, with the first failure."""
    lock, found = threading.Lock(), []

    def one(failure: Exception | None) -> None:
        with lock:
            found.append(failure)
            is_last = len(found) == count
        if is_last:
            when_all(next((one for one in found if one is not None), None))

    return one
