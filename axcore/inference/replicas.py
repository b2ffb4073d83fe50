"""`Replicas`: one engine for each place on a mesh's data axis, in front of them one interface."""

import itertools
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Self, TypeVar

import attrs
import numpy as np
from jax.sharding import Mesh

from axcore.data import Tokenizer
from axcore.errors import AxcoreError, EngineError
from axcore.inference.adapters import Adapter, EngineAdapter
from axcore.inference.block_manager import next_digest
from axcore.inference.cached_model import mesh_of
from axcore.inference.completion import CompletionStream
from axcore.inference.config import EngineConfig
from axcore.inference.engine import Engine, naming_request
from axcore.inference.engine_stats import EngineStats, summed, without_capacity
from axcore.inference.grammar import GrammarCompiler
from axcore.inference.input_batch import RequestState, fail_all
from axcore.inference.request import Draining, QueueFull, Request
from axcore.inference.speculation import Draft
from axcore.inference.warm_up import Progress
from axcore.module import Module

_LOG = logging.getLogger(__name__)

Taken = TypeVar("Taken")


class Replicas:
    """Answers requests by several engines, each on its own devices with all of the weights.

    A request goes to the replica with a free slot that was sent most of its prompt's first pages,
    to the freest of those where several were; where no slot is free, to the freest replica.

    Args:
        model: See `Engine`.
        state: See `Engine`.
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
        # Two locks: changing weights takes minutes, and requests must not
        # wait for it. Where both are needed, `_changing` is taken first.
        self._choosing, self._changing = threading.Lock(), threading.Lock()
        # One for all: a grammar is compiled once, whichever replica its request goes to.
        self._grammars = GrammarCompiler(tokenizer)
        self._engines = tuple(
            Engine(
                model,
                state,
                tokenizer,
                cfg,
                mesh=own,
                draft=draft,
                on_failure=partial(self._fail, index),
                grammars=self._grammars,
            )
            for index, own in enumerate(_replica_meshes(mesh))
        )
        self._adapters: dict[str, EngineAdapter] = {}
        self._num_moved = self._num_lost = 0
        self.max_length = self._engines[0].max_length
        self.config = self._engines[0].config
        self._sent = tuple(
            SentPrompts(
                page_size=one.config.page_size or one.max_length, max_pages=stats.pages_total
            )
            for one in self._engines
            for stats in (one.stats(),)
        )
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
        """Compile the programs of all replicas at once; see `Engine.warm_up`.

        They share none, since a program is compiled for its devices.
        """
        count = len(self._engines)
        when_one = None if when_all is None else _after(count, when_all)
        # The replicas compile at the same time, on the same cores.
        num_threads = max(1, (os.cpu_count() or 1) // count)
        lock, num_done = threading.Lock(), itertools.count(1)

        def warm(index: int) -> None:
            def say(done: int, total: int, name: str) -> None:
                if progress is not None:
                    with lock:
                        progress(next(num_done), count * total, f"{name}, replica {index}")

            self._engines[index].warm_up(say, when_all=when_one, num_threads=num_threads)

        with ThreadPoolExecutor(count) as pool:
            # Submitted all before the first is waited for.
            for warmed in [pool.submit(warm, index) for index in range(count)]:
                warmed.result()

    @property
    def error(self) -> EngineError | None:
        """Why nothing is answered any more; None while a replica answers."""
        errors = [one.error for one in self._engines]
        # The first error; others often follow from it.
        return None if None in errors else errors[0]

    def submit(self, request: Request) -> CompletionStream:
        """Take a request; returns at once.

        Where a replica fails, the requests of which it began no step go to others; those that it
        worked on end with an EngineError.

        Raises:
            RequestError: It can never be answered.
            QueueFull: Too many requests wait at every replica.
            Draining: The replicas take no more.
            EngineError: They are closed, or a step of each failed.
        """
        # Compiling a grammar may take seconds, and choosing is done under a lock.
        if request.grammar is not None:  # so that none who chooses waits until it is compiled
            self._grammars.matcher(request.grammar)
        with self._choosing:
            # Asked here as well as in each engine: a drained replica that
            # failed meanwhile must not pass a request on to the next.
            if self._is_draining:
                raise Draining("the replicas finish what they have and take no new requests")
            # Under the lock to the end, so that two requests
            # at once do not both see the same slot as free.
            return self._at_best(request, lambda engine: engine.submit(request))

    def submit_all(self, requests: Sequence[Request]) -> tuple[CompletionStream, ...]:
        """Take all requests or none; returns at once, with completions in the same order.

        Each goes to the replica that `submit` would give it. Those of one prompt go to one
        replica as long as it has free slots.

        Raises:
            RequestError: One can never be answered.
            QueueFull: Too many requests wait at every replica.
            Draining: The replicas take no more.
            EngineError: They are closed, or a step of each failed.
        """
        for index, request in enumerate(requests):
            # Before any is queued: a replica that began some
            # would have worked for nothing.
            with naming_request(index):
                self._engines[0].check_request(request)
        taken: list[CompletionStream] = []
        try:
            for request in requests:
                taken.append(self.submit(request))
        except AxcoreError:
            for completion in taken:
                completion.cancel()
            raise
        return tuple(taken)

    def stats(self) -> EngineStats:
        """Return what all replicas do now, together; one that failed has no room any more."""
        return attrs.evolve(
            summed(self.replica_stats()),
            num_failed_replicas=sum(one.error is not None for one in self._engines),
            num_moved=self._num_moved,
            num_lost=self._num_lost,
        )

    def replica_stats(self) -> tuple[EngineStats, ...]:
        """Return what each replica does now, in the order of the data axis."""
        return tuple(
            one.stats() if one.error is None else without_capacity(one.stats())
            for one in self._engines
        )

    def weights_in_use(self) -> Any:
        """Return the weights of a replica that answers; see `Engine.weights_in_use`."""
        engines = [one for one in self._engines if one.error is None]
        return (engines or self._engines)[0].weights_in_use()

    def replace_weights(
        self, state: Any, *, version: int | None = None, is_partial: bool = False
    ) -> None:
        """Take over another state of the model, one replica after the other; returns when all did.

        All that answer have it: a replica that has no room for it answers no more.

        Args:
            state: See `Engine.replace_weights`, as for the others.
            version: What completions call the new weights.
            is_partial: Whether the state has only the arrays that changed.

        Raises:
            ConfigError: Its arrays are of another model, or differ in type.
            ModuleError: An array has another shape.
            EngineError: The replicas are closed, or a step of each failed.
        """
        with self._changing:
            if self.error is not None:
                raise self.error
            # On the first alone: all are of one model. A refusal must come
            # before any replica has changed, or they would answer differently.
            self._engines[0].check_weights(state, is_partial=is_partial)
            replace = partial(
                Engine.replace_weights, state=state, version=version, is_partial=is_partial
            )
            for engine in self._engines:
                self._change(engine, replace)
            # After the last one: until then the pages that a replica
            # was sent are still of use on those that have not changed.
            with self._choosing:
                for sent in self._sent:
                    sent.forget()

    def release_weights(self) -> None:
        """Drop the weights of all replicas; see `Engine.release_weights`.

        Raises:
            EngineError: Requests are unfinished, or the replicas are closed.
        """
        with self._changing:
            for engine in self._engines:
                self._change(engine, Engine.release_weights)

    def add_adapter(self, name: str, adapter: Adapter) -> None:
        """Let requests choose an adapter by its name; see `Engine.add_adapter`.

        All replicas have it, or none. New requests wait until they do.

        Raises:
            ConfigError: A replica has no room for one more.
            ModuleError: It adapts layers without adapter slots, or has a larger rank.
            EngineError: The replicas are closed, or a step of each failed.
        """
        # Once, and outside of the locks, for it moves the factors to the host and back.
        converted = self._engines[0].converted(adapter)
        # With `_choosing`: a request that names the adapter
        # must not reach a replica that does not have it yet.
        with self._changing, self._choosing:
            changed: list[Engine] = []
            try:
                for engine in self._engines:
                    self._change(engine, lambda engine: engine.set_adapter(name, converted))
                    changed.append(engine)
            except AxcoreError:
                self._restore_adapter(name, changed)
                raise
            self._adapters[name] = converted

    def remove_adapter(self, name: str) -> None:
        """Refuse new requests with an adapter; those that there are keep it to their end.

        Raises:
            ConfigError: There is none of that name.
            EngineError: The replicas are closed, or a step of each failed.
        """
        with self._changing, self._choosing:
            for engine in self._engines:
                self._change(engine, lambda engine: engine.remove_adapter(name))
            del self._adapters[name]

    def drain(self) -> None:
        """Refuse new requests, and returns when those that there are have been answered."""
        with self._choosing:
            self._is_draining = True
        before = None
        # A replica may fail while another is drained, and
        # its requests go to one that was drained already.
        while before != self._num_moved:  # to a replica that may have been looked at already
            before = self._num_moved
            for engine in self._engines:
                engine.drain()

    def close(self) -> None:
        """End all answers and the replicas' threads."""
        for engine in self._engines:
            engine.close()

    def _at_best(self, request: Request, take: Callable[[Engine], Taken]) -> Taken:
        """Return what the replica does that is preferred among those that take a request.

        Call it with `_choosing`.
        """
        # Any of them: the digests depend on the size of pages alone.
        digests = self._sent[0].digests(request.prompt, request.adapter)
        held = [sent.num_first(digests) for sent in self._sent]
        full: QueueFull | None = None
        for index in by_preference(self.replica_stats(), held):
            engine = self._engines[index]
            try:
                taken = take(engine)
            except QueueFull as error:
                full = error
            # A replica that failed between the look and the call; the next in order is asked.
            except EngineError:
                # It is not this replica's failure: draining or closed, which holds for all.
                if engine.error is None:
                    raise
            else:
                # Noted when taken, not when computed: a second request with the
                # same beginning, sent a moment later, should follow the first.
                self._sent[index].add(digests)
                return taken
        if full is not None:
            raise full
        assert self.error is not None
        raise self.error

    def _fail(self, index: int, error: EngineError, states: Sequence[RequestState]) -> None:
        """End the requests that a failed replica worked on, and moves the others.

        One that it worked on may be why it failed, and is to make no other replica fail.
        """
        where = f"replica {index} of {len(self._engines)}"
        begun = [state for state in states if state.sequence.has_begun]
        waiting = [state for state in states if not state.sequence.has_begun]
        failed = EngineError(error.what, where=where, hint="ask again: other replicas answer")
        failed.__cause__ = error.__cause__
        # In the failed engine's thread, which holds no lock
        # of its own then (see `EngineThread._finish`).
        with self._choosing:
            moved = [state for state in waiting if self._has_moved(state, where)]
            self._num_moved += len(moved)
            self._num_lost += len(states) - len(moved)
        _LOG.error(
            "%s answers no more: %s; %d requests that it worked on failed, %d of %d that waited "
            "were moved to others",
            *(where, error.what, len(begun), len(moved), len(waiting)),
            exc_info=error.__cause__,
        )
        # The requests that were moved are somebody else's by now.
        fail_all(error if self.error is not None else failed, begun)

    def _has_moved(self, state: RequestState, where: str) -> bool:
        """Move a request to another replica; returns whether one takes it, and ends it if not."""
        try:
            self._at_best(state.request, lambda engine: engine.take_over(state))
        # This runs in a thread that ends; what is raised here nobody would see.
        except Exception as error:  # whatever it is, nobody may wait for ever
            failed = EngineError(
                f"the replica failed before it began the request, and no other took it: {error}",
                where=where,
                hint="ask again",
            )
            failed.__cause__ = error
            state.completion.fail(failed)
            return False
        return True

    def _change(self, engine: Engine, change: Callable[[Engine], None]) -> None:
        """Change a replica, unless it failed or does so now, as long as another one answers."""
        if engine.error is None:
            try:
                change(engine)
            except EngineError:
                # The engine has failed by this change: the others
                # still answer, and are changed without it.
                if engine.error is None:
                    raise
        if self.error is not None:
            raise self.error

    def _restore_adapter(self, name: str, engines: Sequence[Engine]) -> None:
        """Give engines back what had the name of an adapter before."""
        before = self._adapters.get(name)
        for engine in engines:
            if before is None:
                self._change(engine, lambda engine: engine.remove_adapter(name))
            else:
                self._change(engine, lambda engine: engine.set_adapter(name, before))


def _after(
    count: int, when_all: Callable[[Exception | None], None]
) -> Callable[[Exception | None], None]:
    """Return what calls a function at the last of so many calls, with the first failure."""
    lock, found = threading.Lock(), []

    def one(failure: Exception | None) -> None:
        with lock:
            found.append(failure)
            is_last = len(found) == count
        # Outside of the lock, as `when_all` may log or call back.
        if is_last:
            when_all(next((one for one in found if one is not None), None))

    return one


class SentPrompts:
    """Full pages of the prompts that a replica was sent last; not for several threads.

    Args:
        page_size: Tokens of a page.
        max_pages: Pages that are remembered, as many as the replica has.
    """

    def __init__(self, *, page_size: int, max_pages: int) -> None:
        self._page_size, self._max_pages = page_size, max_pages
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def digests(self, prompt: Sequence[int], adapter: str | None = None) -> list[bytes]:
        """Return digests of a prompt, read with an adapter, up to the end of each full page."""
        # The scheduler's salt has the number of the weights too. It is not needed here, since
        # `forget` drops all digests when weights are replaced.
        size, found = self._page_size, [(adapter or "").encode()]
        text = np.asarray(prompt, np.int64)
        for start in range(0, len(text) - size + 1, size):
            found.append(next_digest(found[-1], text[start : start + size]))
        return found[1:]

    def num_first(self, digests: Sequence[bytes]) -> int:
        """Return how many first pages of a prompt the replica was sent."""
        # The first that is missing ends it, since pages behind it cannot be shared.
        return next((n for n, one in enumerate(digests) if one not in self._known), len(digests))

    def add(self, digests: Sequence[bytes]) -> None:
        """Remember a prompt; forgets the pages sent longest ago where they are too many."""
        # From the last to the first, so that first pages,
        # which more prompts share, are forgotten last.
        for digest in reversed(digests):
            self._known[digest] = None
            self._known.move_to_end(digest)
        while len(self._known) > self._max_pages:
            self._known.popitem(last=False)

    def forget(self) -> None:
        """Forget all pages."""
        self._known.clear()


def by_preference(stats: Sequence[EngineStats], held: Sequence[int]) -> list[int]:
    """Return the numbers of replicas, the one that is to take a request first.

    Args:
        stats: Of each replica.
        held: First pages of the prompt that each was sent.
    """
    loads = [one.num_waiting + one.num_running for one in stats]

    def key(index: int) -> tuple[bool, int, int, int]:
        # A full replica is chosen by how short its queue is:
        # waiting costs more than reading a prompt again.
        is_full = loads[index] >= stats[index].num_slots
        pages = -held[index]
        return (
            is_full,
            loads[index] if is_full else pages,
            pages if is_full else loads[index],
            index,
        )

    return sorted(range(len(stats)), key=key)


_REPLICAS = "data"
"""The mesh axis along which there are replicas."""


def _replica_meshes(mesh: Mesh) -> tuple[Mesh, ...]:
    """Return the mesh of each replica, whose data axis has one place."""
    # Kept with size 1, since specs name all axes.
    axis = mesh.axis_names.index(_REPLICAS)
    return tuple(
        Mesh(np.take(mesh.devices, [place], axis), mesh.axis_names, axis_types=mesh.axis_types)
        for place in range(mesh.shape[_REPLICAS])
    )


AnyEngine = Engine | Replicas


def open_engine(
    model: Module,
    state: Any,
    tokenizer: Tokenizer,
    cfg: EngineConfig = EngineConfig(),  # noqa: B008 - a frozen value
    *,
    mesh: Mesh | None = None,
    draft: Draft | None = None,
) -> AnyEngine:
    """Return an engine on a mesh, or replicas where its data axis is longer than 1.

    Args:
        model: See `Engine`.
        state: See `Engine`.
        tokenizer: See `Engine`.
        cfg: Of each engine.
        mesh: By default the one of the state.
        draft: See `Engine`.

    Raises:
        ConfigError: The config does not fit the model, or itself.
        ShardingError: The model does not divide over the mesh.
    """
    found = mesh_of(state) if mesh is None else mesh
    if found is not None and found.shape.get(_REPLICAS, 1) > 1:
        return Replicas(model, state, tokenizer, cfg, mesh=found, draft=draft)
    return Engine(model, state, tokenizer, cfg, mesh=found, draft=draft)
