"""`FaultPlan`: a guard that injects faults by step and process, to test what a run survives.

Every fault is real: the process raises, dies, stops or hangs, bits change and the disk refuses
files. What has fired is in the run's event log, so that a restart does not fire it again.
"""

import ctypes
import errno
import math
import os
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np

from axcore.config import (
    REQUIRED,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    class_tag,
    config,
    digest,
    suggest_names,
)
from axcore.distributed import process_count, process_index
from axcore.errors import ConfigError
from axcore.resilience.device_probe import slow_down
from axcore.resilience.event_log import EventLog, read_events
from axcore.trainer import Guard
from axcore.trainer.step import TrainState

if TYPE_CHECKING:
    from axcore.trainer import Trainer


_FOREVER_S = 365 * 86400.0
_FAULT_EVENT = "fault"


_NAMED_FIRST = {"open": 0, "os.mkdir": 0, "os.rename": 1}
"""The argument that is the path, by event; of a rename it is the new one."""

# What only reads a full disk allows.
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class InjectedFaultError(RuntimeError):
    """What the fault `Raise` raises."""


@config
class Fault:
    """Something that goes wrong; it does so at every step from `at_step` on, until it has fired.

    Args:
        at_step: The first step at which it is triggered.
        process: Index of the process in which it is triggered; None for every process.
        times: How often it fires, in all starts of the run together.
    """

    at_step: PositiveInt = REQUIRED
    process: NonNegativeInt | None = 0
    times: PositiveInt = 1

    def check(self, trainer: "Trainer") -> None:
        """Check that the fault can be triggered in this run.

        Raises:
            ConfigError: It would never be triggered, or not as it says.
        """
        if self.at_step > trainer.config.max_steps:
            raise ConfigError(
                f"a fault is set for step {self.at_step}, of {trainer.config.max_steps}",
                where=f"{type(self).__name__}.at_step",
                hint=f"at_step={trainer.config.max_steps} is the last step",
            )
        if self.process is not None and self.process >= process_count():
            # No error: a run continues with fewer processes where one is left out.
            warnings.warn(
                f"a fault is set for process {self.process}, "
                f"and there are {process_count()}, from 0",
                stacklevel=2,
            )

    def on_batch(self, step: int, batch: Any) -> Any:
        """Strike before a step; return its batch on the host."""
        return batch

    def on_state(self, step: int, state: TrainState) -> TrainState:
        """Strike after a step; return its state."""
        return state

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Strike at a log line."""

    def on_save(self, step: int, state: TrainState) -> None:
        """Strike before a save."""


@config
class Raise(Fault):
    """An exception that nobody expects."""

    def on_batch(self, step: int, batch: Any) -> Any:
        """Raise."""
        raise InjectedFaultError(f"the fault plan raises this before step {step}")


@config
class Signal(Fault):
    """A signal to the process: SIGKILL ends it at once, SIGSTOP stops it without a word."""

    signal: Literal["SIGKILL", "SIGSTOP", "SIGTERM", "SIGSEGV"] = "SIGKILL"

    def on_batch(self, step: int, batch: Any) -> Any:
        """Send the signal."""
        os.kill(os.getpid(), signal.Signals[self.signal])
        return batch


@config
class _Hanging(Fault):
    """No progress for some time, in the main thread.

    Args:
        seconds: How long.
        holds_gil: Whether no other thread of Python runs meanwhile, as in a stuck C library.
    """

    seconds: PositiveFloat = _FOREVER_S
    holds_gil: bool = False

    def _hang(self) -> None:
        (_sleep_holding_gil if self.holds_gil else time.sleep)(self.seconds)


@config
class Hang(_Hanging):
    """A hang while the others wait for its batch."""

    def on_batch(self, step: int, batch: Any) -> Any:
        """Hang."""
        self._hang()
        return batch


@config
class HangAfterStep(_Hanging):
    """A hang after a step, so that the others are stuck in the collectives of the next one."""

    def on_state(self, step: int, state: TrainState) -> TrainState:
        """Hang."""
        self._hang()
        return state


@config
class HangInCallback(_Hanging):
    """A hang in a callback that sees the metrics of a log line."""

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hang."""
        self._hang()


@config
class HangInSave(_Hanging):
    """A hang as a checkpoint is about to be saved."""

    def on_save(self, step: int, state: TrainState) -> None:
        """Hang."""
        self._hang()


@config
class SlowStep(Fault):
    """Slower steps, `times` in a row, as of a straggler."""

    seconds: PositiveFloat = 1.0

    def on_batch(self, step: int, batch: Any) -> Any:
        """Sleep."""
        time.sleep(self.seconds)
        return batch


@config
class PoisonBatch(Fault):
    """Spoilt values in the process's part of a batch.

    Args:
        how: `nan` makes its floating-point arrays NaN, and `shuffle` mixes up each array's values.
    """

    how: Literal["nan", "shuffle"] = "nan"

    def on_batch(self, step: int, batch: Any) -> Any:
        """Return the batch, spoilt."""
        spoil = _with_nan if self.how == "nan" else _shuffled
        return jax.tree.map(lambda leaf: spoil(np.asarray(leaf)), batch)


@config
class FlipBit(Fault):
    """One flipped bit in one device's part of a parameter, as of failing memory.

    Args:
        parameter: Its path in the model, such as `decoder.norm.weight`.
        device: Which of the process's devices, from 0.
        element: Which element of the device's part.
        bit: Which bit of it, from the lowest.
    """

    parameter: str = REQUIRED
    device: NonNegativeInt = 0
    element: NonNegativeInt = 0
    bit: NonNegativeInt = 0

    def check(self, trainer: "Trainer") -> None:
        """Check that the parameter, the device, the element and the bit are there."""
        super().check(trainer)
        leaves = _by_path(trainer.compiler.abstract_state().model)
        if self.parameter not in leaves:
            known = suggest_names(self.parameter, list(leaves))
            raise ConfigError(
                f"there is no parameter {self.parameter!r}; {known}", where="FlipBit.parameter"
            )
        leaf = leaves[self.parameter]
        size = math.prod(leaf.sharding.shard_shape(leaf.shape))
        for name, count in {
            "device": len(leaf.sharding.addressable_devices),
            "element": size,
            "bit": 8 * leaf.dtype.itemsize,
        }.items():
            if getattr(self, name) >= count:
                raise ConfigError(
                    f"{name} is {getattr(self, name)}; {self.parameter} has {count} here, from 0",
                    where=f"FlipBit.{name}",
                    hint=f"{name}={count - 1} is the last one",
                )

    def on_state(self, step: int, state: TrainState) -> TrainState:
        """Return the state with the bit flipped."""
        structure = jax.tree.structure(state.model)
        leaves = _by_path(state.model)
        leaves[self.parameter] = self.flipped(leaves[self.parameter])
        return state._replace(model=jax.tree.unflatten(structure, list(leaves.values())))

    def flipped(self, leaf: jax.Array) -> jax.Array:
        """Return an array with the bit of the device's part flipped."""
        shards = sorted(leaf.addressable_shards, key=lambda shard: shard.device.id)
        flipped = shards[self.device]
        values = np.array(flipped.data)
        values.reshape(-1).view(np.uint8).reshape(values.size, -1)[self.element, self.bit // 8] ^= (
            np.uint8(1 << self.bit % 8)
        )
        parts = [
            jax.device_put(values, shard.device) if shard is flipped else shard.data
            for shard in shards
        ]
        return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, parts)


@config
class FullDisk(Fault):
    """A disk that refuses new files, folders and renames in the run directory, as one that is full.

    That is what Python opens or makes; files that are open already can still be written.
    """

    seconds: PositiveFloat = 10.0

    def on_batch(self, step: int, batch: Any) -> Any:
        """Begin to refuse."""
        refuse_files(self.seconds)
        return batch


@config
class SlowDisk(Fault):
    """A disk on which each new file, folder and rename in the run directory waits.

    Args:
        seconds: How long the disk is slow.
        wait_s: What each costs.
    """

    seconds: PositiveFloat = 10.0
    wait_s: PositiveFloat = 0.2

    def on_batch(self, step: int, batch: Any) -> Any:
        """Begin to be slow."""
        slow_files(self.seconds, self.wait_s)
        return batch


@config
class SlowDevice(Fault):
    """A device that takes longer for each probe of `StragglerCheck`; steps stay as fast.

    Args:
        device: Which of the process's devices, from 0.
        factor: How many times as much it has to do.
        seconds: How long the device is slow.
    """

    device: NonNegativeInt = 0
    factor: PositiveInt = 2
    seconds: PositiveFloat = _FOREVER_S

    def check(self, trainer: "Trainer") -> None:
        """Check that the device is there."""
        super().check(trainer)
        count = len(trainer.mesh.local_devices)
        if self.device >= count:
            raise ConfigError(
                f"device is {self.device}; this process has {count}, from 0",
                where="SlowDevice.device",
                hint=f"device={count - 1} is the last one",
            )

    def on_state(self, step: int, state: TrainState) -> TrainState:
        """Begin to be slow."""
        devices: set[Any] = state.skipped.sharding.addressable_devices
        device = sorted(devices, key=lambda one: one.id)[self.device]
        slow_down(device, self.factor, self.seconds)
        return state


class FaultPlan(Guard):
    """A guard that triggers faults when their step comes; off wherever no config names it."""

    @config
    class Config(Guard.Config):
        """Which faults."""

        faults: tuple[Fault, ...] = REQUIRED

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        # By digest of the fault's config, so that a restart knows which have fired.
        self._keys = {digest(fault): fault for fault in cfg.faults}
        self._fired: Counter[str] = Counter()
        if len(self._keys) < len(cfg.faults):
            raise ConfigError("a fault is in the plan twice", where="faults", hint="set its times")

    def check(self, trainer: "Trainer") -> None:
        """Check each fault, so that a plan does not end a run in its middle."""
        for fault in self._keys.values():
            fault.check(trainer)

    def on_start(self, trainer: "Trainer", directory: Path) -> None:
        """Read what has fired in earlier starts of the run."""
        set_disk_fault_roots(directory, *_checkpoint_folder(trainer))
        self._log = EventLog(directory, process_index())
        own = [one for one in read_events(directory).events if one["process"] == process_index()]
        self._fired.update(one["key"] for one in own if one["event"] == _FAULT_EVENT)

    def on_batch(self, step: int, batch: Any) -> Any:
        """Trigger the faults that are due before a step."""
        for fault in self._due(step, "on_batch"):
            batch = fault.on_batch(step, batch)
        return batch

    def on_state(self, step: int, state: TrainState) -> TrainState:
        """Trigger the faults that are due after a step."""
        for fault in self._due(step, "on_state"):
            state = fault.on_state(step, state)
        return state

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Trigger the faults that are due at a log line."""
        for fault in self._due(step, "on_metrics"):
            fault.on_metrics(step, metrics)

    def on_save(self, step: int, state: TrainState) -> None:
        """Trigger the faults that are due before a save."""
        for fault in self._due(step, "on_save"):
            fault.on_save(step, state)

    def _due(self, step: int, method: str) -> Iterator[Fault]:
        """Yield the faults that are due now and have a method, each once it is on record."""
        for key, fault in self._keys.items():
            if (
                step >= fault.at_step
                and self._fired[key] < fault.times
                and fault.process in (None, process_index())
                # A fault that does nothing here must not be counted as fired.
                and getattr(type(fault), method) is not getattr(Fault, method)
            ):
                # On record before it fires, as it may kill the process.
                self._record(key, fault, step)
                yield fault

    def _record(self, key: str, fault: Fault, step: int) -> None:
        """Write what is about to fire: the process may not live to do so afterwards."""
        self._fired[key] += 1
        kind = class_tag(type(fault)).rpartition(":")[2]
        self._log.write(_FAULT_EVENT, kind=kind, step=step, time_of=self._fired[key], key=key)


def _by_path(model: Any) -> dict[str, Any]:
    """Return a model's arrays by their paths, in the order of its tree."""
    paths, _ = jax.tree.flatten_with_path(model)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in paths}


def _checkpoint_folder(trainer: "Trainer") -> tuple[str, ...]:
    named = trainer.config.checkpoint.directory
    return () if named is REQUIRED or "://" in named else (named,)


def _with_nan(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    is_float = np.issubdtype(array.dtype, np.floating)
    return np.full_like(array, np.nan) if is_float else array


def _shuffled(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).permutation(array.reshape(-1)).reshape(array.shape)


def _sleep_holding_gil(seconds: float) -> None:
    """Lock a mutex of C twice, which no signal ends, through a library that keeps the GIL."""
    # `PyDLL` keeps the GIL through the call, unlike `CDLL`.
    libc = ctypes.PyDLL(None)
    mutex = ctypes.create_string_buffer(64)  # zeros are an unlocked mutex
    whole, rest = divmod(time.time() + seconds, 1)
    until = (ctypes.c_long * 2)(int(whole), int(rest * 1e9))
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_timedlock(mutex, until)


# -- Full and slow disks ---------------------------------------------------------------------------
#
# An audit hook of Python refuses each call that opens for writing, makes or renames something below
# the paths of a run, or lets it wait. What libraries in other languages write is not touched, but
# what they write into is: a checkpoint's folder is made, and its files are made durable, by Python.


class _Disk:
    """What happens to a path until a time; nothing at first."""

    def __init__(self) -> None:
        self.until = 0.0
        self.fail: Callable[[str], None] = lambda path: None
        self.roots: tuple[str, ...] = ()
        self.is_hooked = False

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        # The time first: a hook is called at every `open` of the process for the rest of its life.
        if event not in _NAMED_FIRST or time.monotonic() > self.until:
            return
        if event == "open" and not arguments[2] & _WRITING:
            return
        path = os.fspath(arguments[_NAMED_FIRST[event]])
        # With a separator at the end of roots, so that `run-2` is not below `run`.
        if isinstance(path, str) and os.path.abspath(path).startswith(self.roots):
            self.fail(path)


_disk = _Disk()


def set_disk_fault_roots(*roots: Path | str) -> None:
    """Set the folders in which disk faults take effect."""
    _disk.roots = tuple(os.path.abspath(root) + os.sep for root in roots)


def refuse_files(seconds: float) -> None:
    """Let every such call raise "No space left on device" for some seconds."""

    def fail(path: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    _begin(fail, seconds)


def slow_files(seconds: float, wait_s: float) -> None:
    """Let every such call wait, for some seconds."""
    _begin(lambda path: time.sleep(wait_s), seconds)


def _begin(fail: Callable[[str], None], seconds: float) -> None:
    _disk.fail, _disk.until = fail, time.monotonic() + seconds
    if not _disk.is_hooked:  # a hook stays for the life of the process
        sys.addaudithook(_disk.hook)
        _disk.is_hooked = True
