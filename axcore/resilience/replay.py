"""`ReplayCheck`: a guard that finds devices that compute wrongly where no parameter has a replica.

It computes the gradients of a step twice, the second time with the devices of each process
exchanged. The same program on the same values gives the same bits, whichever device computes which
part, unless one of them computes wrongly.
"""

import functools
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from axcore.config import PositiveInt, config
from axcore.distributed import all_gather_object, process_index
from axcore.errors import ConfigError
from axcore.plugins import wanted_compiler_options
from axcore.resilience.corruption import raise_corruption, show_devices
from axcore.resilience.device_search import DeviceSearch, Order, Rows, differing_places
from axcore.resilience.event_log import EventLog
from axcore.resilience.fingerprints import Fingerprinter
from axcore.trainer import Guard
from axcore.trainer.step import TrainState

if TYPE_CHECKING:
    from axcore.trainer import Trainer


# Enough to see whether one layer or all are concerned.
_MOST_NAMED = 3


class ReplayCheck(Guard):
    """A replay of the gradients of a step by exchanged devices, at intervals.

    The first step of each start is replayed as well. Between a replay and the next step the state
    rests; its fingerprints before a save and before that step must be those after the replay.
    """

    @config
    class Config(Guard.Config):
        """When to replay.

        Args:
            every_steps: Steps between replays; each takes as long as about two steps.
        """

        every_steps: PositiveInt = 250

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self._batch: Any = None
        self._resting: TrainState | None = None
        self._is_first = True

    def check(self, trainer: "Trainer") -> None:
        """Check that there are devices to exchange.

        Raises:
            ConfigError: A process has one device only.
        """
        own = _places(list(trainer.mesh.devices.flat))
        if alone := [process for process, places in own.items() if len(places) == 1]:
            raise ConfigError(
                f"ReplayCheck exchanges devices of one process, and process {alone[0]} has one",
                where="guards",
                hint="take ReplayCheck out of guards, or give each process two devices or more",
            )

    def on_start(self, trainer: "Trainer", directory: Path) -> None:
        """Compile the replay for both orders, and the fingerprints of the state."""
        # Before the first step: a compilation in the
        # middle of training would look like a hang.
        self._replay = _Replay(trainer, EventLog(directory, process_index()))
        self._rest = _Rest(trainer, EventLog(directory, process_index()))
        self._is_first = True

    def on_batch(self, step: int, batch: Any) -> Any:
        """Check the state that rested, and keep the batch of a step that will be replayed.

        Raises:
            CorruptionError: A part of the state changed on a device of this process.
            ProcessError: It did on a device of another process.
        """
        resting, self._resting = self._resting, None
        if resting is not None:
            self._rest.check(step - 1, resting)
        # A run that goes back makes the same step again, with another state.
        self._rest.drop()
        is_due = self._is_first or step % self.config.every_steps == 0
        self._batch = batch if is_due else None
        return batch

    def on_state(self, step: int, state: TrainState) -> TrainState:
        """Replay the step if that is due.

        Raises:
            CorruptionError: A device of this process computes wrongly, or may do so.
            ProcessError: A device of another process does.
        """
        if self._batch is not None:
            batch, self._batch, self._is_first = self._batch, None, False
            self._replay.check(step, state.model, batch)
            self._rest.take(step, state)
        return state

    def measured(self, step: int, state: TrainState) -> Mapping[str, float]:
        """Keep the state until the next step, if it was replayed; measures nothing."""
        # Here and not in `on_state`: guards behind this one may still put another in its place.
        self._resting = state if self._rest.is_of(step) else None
        return {}

    def on_save(self, step: int, state: TrainState) -> None:
        """Check a state that rested before it is saved.

        Raises:
            CorruptionError: A part of it changed on a device of this process.
            ProcessError: It did on a device of another process.
        """
        self._rest.check(step, state)


class _Rest:
    """The fingerprints of the newest state that was replayed."""

    def __init__(self, trainer: "Trainer", log: EventLog) -> None:
        state = trainer.compiler.abstract_state()
        self._names = _names(state)
        self._devices = {device.id: device for device in trainer.mesh.devices.flat}
        self._fingerprints = Fingerprinter(state, trainer.mesh)
        self._log = log
        self._step = -1

    def is_of(self, step: int) -> bool:
        """Whether it is the state after a step."""
        return step == self._step

    def drop(self) -> None:
        """Forget the fingerprints."""
        self._step = -1

    def take(self, step: int, state: TrainState) -> None:
        """Take the fingerprints of the state after a step."""
        self._step, self._taken = step, self._fingerprints(state)

    def check(self, step: int, state: TrainState) -> None:
        """Compare a state with what was taken, if it is the one after the same step."""
        if not self.is_of(step):
            return
        found = self._changed(step, state)
        # Again, for a device may have computed one fingerprint wrongly.
        lasting = self._changed(step, state) if found else {}
        if not found:
            return
        devices = [self._devices[one] for one in sorted(lasting or found)]
        leaves = sorted({leaf for changed in (lasting or found).values() for leaf in changed})
        named = f"{show_devices(devices)} in {_listed(self._names, leaves)}"
        if not lasting:
            what = f"the fingerprint of {named} was wrong once; the state is intact"
            _report_once(self._log, step, devices, what)
            return
        what = f"bits changed at rest on {named}"
        self._log.write("corruption", step=step, devices=[one.id for one in devices], what=what)
        raise_corruption(
            what,
            devices=devices,
            where=f"step {step}; this state was not saved",
            hint=f"leave {show_devices(devices)} out if it happens again, and start the run again: "
            "it resumes from its newest checkpoint",
        )

    def _changed(self, step: int, state: TrainState) -> dict[int, list[int]]:
        """Return the numbers of the arrays that changed, by the device's id, in all processes."""
        now = self._fingerprints(state)
        own = {
            str(device): [leaf for leaf, one in enumerate(sums) if one != self._taken[device][leaf]]
            for device, sums in now.items()
        }
        every = all_gather_object("comparing a state with itself", lambda: own)
        return {int(device): leaves for one in every for device, leaves in one.items() if leaves}


class _Gradients:
    """The gradients of a step by devices in one order, and their fingerprints."""

    def __init__(self, trainer: "Trainer", order: Order) -> None:
        own = trainer.mesh
        self._devices: list[Any] = list(own.devices.flat)
        self._order = order
        grid = np.array([self._devices[at] for at in order]).reshape(own.devices.shape)
        mesh = Mesh(grid, own.axis_names, axis_types=own.axis_types)
        compiler = trainer.compiler_on(mesh)
        read: Any = (compiler.abstract_state().model, compiler.batch.abstract())
        self._shardings = jax.tree.map(lambda leaf: leaf.sharding, read)
        options = dict(wanted_compiler_options(trainer.hardware)) or None
        with jax.set_mesh(mesh):
            lowered = compiler.jitted_gradients.lower(*read, jnp.int32(0))
            self.program = lowered.compile(compiler_options=options)
            made = jax.tree.map(_abstract, lowered.out_info, self.program.output_shardings)
            self._fingerprints = Fingerprinter((read[0], made), mesh)
        self._places = {self._devices[at].id: place for place, at in enumerate(order)}

    def __call__(self, step: int, model: Any, batch: Any) -> dict[int, tuple[int, ...]]:
        """Return the fingerprints on this process's devices by place; wait for them."""
        model, batch = jax.tree.map(self._moved, (model, batch), self._shardings)
        # Of the parameters too, which shows whether a part already arrived wrongly.
        rows = self._fingerprints((model, self.program(model, batch, np.int32(step))))
        return {self._places[device]: sums for device, sums in rows.items()}

    def _moved(self, leaf: jax.Array, sharding: NamedSharding) -> jax.Array:
        """Return an array with each part on the device that computes it in this order."""
        if leaf.sharding == sharding:
            return leaf
        # Copies of each part as it is, so that nothing is computed on the way.
        parts = {shard.device: shard.data for shard in leaf.addressable_shards}
        moved = [
            jax.device_put(parts[device], self._devices[to])
            for device, to in zip(self._devices, self._order, strict=True)
            if device in parts
        ]
        return jax.make_array_from_single_device_arrays(leaf.shape, sharding, moved)


class _Replay:
    """The replay of one run, and what follows where results differ."""

    def __init__(self, trainer: "Trainer", log: EventLog) -> None:
        self._trainer = trainer
        self._log = log
        self._devices: list[Any] = list(trainer.mesh.devices.flat)
        self._names = _replayed_names(trainer)
        self._search = DeviceSearch(list(_places(self._devices).values()))
        self._programs = {order: _Gradients(trainer, order) for order in self._search.orders}
        self._passed: int | None = None
        self._is_off = False

    def check(self, step: int, model: Any, batch: Any) -> None:
        """Replay a step, and look for the device at fault where results differ."""
        if self._is_off:
            return
        on_devices = self._trainer.batch_sharding.device_put(batch)
        rows_of = functools.partial(self._rows, step=step, model=model, batch=on_devices)
        orders = self._search.orders
        first = [rows_of(order) for order in orders]
        if first[0] == first[1]:
            self._passed = step
            return
        again = [rows_of(order) for order in orders]
        where = _listed(self._names, _differing_leaves(*first))
        odd = sorted(
            {
                order[place]
                for order, *pair in zip(orders, first, again, strict=True)
                for place in differing_places(*pair)
            }
        )
        # Where several places came out otherwise, the fault spread from one, and none shows which.
        known = odd if len(odd) == 1 else []
        if not odd:
            found = self._search.at_fault(rows_of, first)
            what = f"step {step} gives other bits with devices exchanged, in {where}"
            self._end(step, what, found, is_certain=bool(found) or self._passed is not None)
        elif again[0] == again[1]:
            what = f"a replay gave other bits once, in {where}; {self._verdict(known)}"
            _report_once(self._log, step, [self._devices[one] for one in known], what)
        else:
            what = f"step {step} gives other bits each time, in {where}"
            self._end(step, what, known, is_certain=self._passed is not None)

    def _rows(self, order: Order, *, step: int, model: Any, batch: Any) -> Rows:
        """Return the fingerprints of all places, computed by the devices in an order."""
        # Programs for the search are not kept: it is rare, and their memory is the run's.
        program = self._programs.get(order) or _Gradients(self._trainer, order)
        own = {str(place): sums for place, sums in program(step, model, batch).items()}
        every = all_gather_object("comparing replays", lambda: own)
        by_place = {int(place): tuple(sums) for one in every for place, sums in one.items()}
        return tuple(by_place[place] for place in range(len(self._devices)))

    def _verdict(self, found: Sequence[int]) -> str:
        if not found:
            return "nothing shows which device computed wrongly"
        named = show_devices(self._devices[one] for one in found)
        return f"{named} computed wrongly" if len(found) == 1 else f"{named}: one of them is wrong"

    def _end(self, step: int, what: str, found: Sequence[int], *, is_certain: bool) -> None:
        if not is_certain:
            # The program may be of that kind, and an alarm at each step would hide real ones.
            self._is_off = True
            warnings.warn(f"ReplayCheck is off, as for no one device's fault {what}", stacklevel=2)
            return
        devices = [self._devices[one] for one in found] or self._devices
        ids = [device.id for device in devices]
        self._log.write("corruption", step=step, devices=ids, what=what)
        advice = f"leave {show_devices(devices)} out" if found else "test the devices"
        since = "the start of this attempt" if self._passed is None else f"step {self._passed}"
        raise_corruption(
            f"{what}; {self._verdict(found)}",
            devices=devices,
            where=f"step {step}; this state was not saved",
            hint=f"{advice}, and go back with --from-step: checkpoints after {since} may be wrong",
        )


def _report_once(log: EventLog, step: int, devices: Sequence[Any], what: str) -> None:
    log.write("transient_fault", step=step, devices=[one.id for one in devices], what=what)
    warnings.warn(f"step {step}: {what}", stacklevel=2)


def _places(devices: Sequence[Any]) -> dict[int, list[int]]:
    """Return the places of devices by their process."""
    found: dict[int, list[int]] = {}
    for place, device in enumerate(devices):
        found.setdefault(device.process_index, []).append(place)
    return found


def _differing_leaves(one: Rows, other: Rows) -> list[int]:
    """Return the numbers of the arrays that differ at some place."""
    pairs = zip(np.array(one), np.array(other), strict=True)
    return sorted(
        {int(leaf) for first, second in pairs for leaf in np.flatnonzero(first != second)}
    )


def _names(tree: Any) -> list[str]:
    paths, _ = jax.tree.flatten_with_path(tree)
    return [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths]


def _replayed_names(trainer: "Trainer") -> list[str]:
    model = trainer.compiler.abstract_state().model
    trained = _names(trainer.step.trained_part(model))
    return [*_names(model), *(f"the gradient of {name}" for name in trained), "the loss"]


def _abstract(info: Any, sharding: NamedSharding) -> Any:
    return jax.ShapeDtypeStruct(info.shape, info.dtype, sharding=sharding)  # type: ignore[no-untyped-call]


def _listed(names: Sequence[str], leaves: Sequence[int]) -> str:
    more = f" and {len(leaves) - _MOST_NAMED} more" if len(leaves) > _MOST_NAMED else ""
    return ", ".join(names[leaf] for leaf in leaves[:_MOST_NAMED]) + more
