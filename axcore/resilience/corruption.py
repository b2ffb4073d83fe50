"""`CorruptionCheck`: a guard that finds devices whose parameters differ from their replicas.

Replicas go through the same operations on the same values, so that their bits stay equal. Where
they do not, memory or arithmetic of some device failed.
"""

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import attrs
import jax
import numpy as np

from axcore.config import PositiveInt, config
from axcore.distributed import all_gather_object, process_index
from axcore.errors import CorruptionError, ProcessError
from axcore.resilience.event_log import EventLog
from axcore.resilience.fingerprints import Fingerprinter, Fingerprints, fingerprint_on_host
from axcore.trainer import Guard
from axcore.trainer.step import TrainState

if TYPE_CHECKING:
    from axcore.trainer import Trainer


# Enough to see whether one layer or all are concerned.
_MOST_NAMED = 3


class CorruptionCheck(Guard):
    """A comparison of the parameters' fingerprints between replicas, at intervals and each save.

    A mismatch that goes away when it is looked at again is a warning. One that stays ends the run
    before the state is saved. Parameters without replicas can't be compared.
    """

    @config
    class Config(Guard.Config):
        """When to compare.

        Args:
            every_steps: Steps between checks; each waits for the devices.
        """

        every_steps: PositiveInt = 100

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self._every = cfg.every_steps
        self._checker: _Checker | None = None

    def on_start(self, trainer: "Trainer", directory: Path) -> None:
        """Compile the fingerprint, and warn where there is nothing to compare."""
        # Of shapes, before the first step: a compilation
        # in the middle of training would look like a hang.
        self._checker = _Checker(trainer.compiler.abstract_state().model, trainer.mesh, directory)

    def on_state(self, step: int, state: TrainState) -> TrainState:
        """Check the state where it is due.

        Raises:
            CorruptionError: Replicas differ, and a device of this process may be wrong.
            ProcessError: They differ, and a device of another process is wrong.
        """
        if step % self._every == 0:
            self.on_save(step, state)
        return state

    def on_save(self, step: int, state: TrainState) -> None:
        """Check a state before it is saved.

        Raises:
            CorruptionError: Replicas differ, and a device of this process may be wrong.
            ProcessError: They differ, and a device of another process is wrong.
        """
        if self._checker is not None:
            self._checker.check(step, state.model)


@attrs.frozen
class Replicas:
    """Devices that hold the same part of a leaf.

    Args:
        leaf: Its number in the order of `jax.tree.leaves`.
        devices: Their ids.
    """

    leaf: int
    devices: tuple[int, ...]


@attrs.frozen
class _Disagreement:
    """Replicas whose fingerprints differ.

    Args:
        replicas: All of them.
        suspects: Ids of those that most others contradict; all, where there is no majority.
    """

    replicas: Replicas
    suspects: tuple[int, ...]

    @property
    def is_decided(self) -> bool:
        """Whether a majority says who is wrong."""
        return len(self.suspects) < len(self.replicas.devices)


class _Checker:
    """The compiled check of one run."""

    def __init__(self, model: Any, mesh: jax.sharding.Mesh, directory: Path) -> None:
        paths, _ = jax.tree.flatten_with_path(model)
        self._names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths]
        self._devices = {device.id: device for device in mesh.devices.flat}
        self._groups: list[Replicas] = replicas_of(model)
        self._fingerprints = Fingerprinter(model, mesh)
        self._log = EventLog(directory, process_index())
        self._checked = -1
        if not self._groups:
            warnings.warn(
                "CorruptionCheck has nothing to compare: no parameter has a replica on this mesh; "
                "ReplayCheck needs none",
                stacklevel=2,
            )

    def check(self, step: int, model: Any) -> None:
        """Raise where replicas differ, and do so when looked at again."""
        # A save right after a check looks at the same state.
        if step == self._checked or not self._groups:
            return
        found = disagreements(self._groups, self._everywhere(model))
        if found:
            # Again, from the same arrays: a device that computes one fingerprint wrongly may hold
            # the right parameters.
            again = disagreements(self._groups, self._everywhere(model))
            self._report(step, found, model, is_lasting=bool(again))
        self._checked = step

    def _everywhere(self, model: Any) -> Fingerprints:
        own = {str(device): sums for device, sums in self._fingerprints(model).items()}
        # Integers, a few bytes a leaf and device, so hosts can exchange them.
        all_own = all_gather_object("comparing fingerprints", lambda: own)
        return {int(device): tuple(sums) for one in all_own for device, sums in one.items()}

    def _report(
        self, step: int, found: list[_Disagreement], model: Any, *, is_lasting: bool
    ) -> None:
        what = self._described(found)
        suspects = sorted({device for one in found for device in one.suspects})
        kind = "corruption" if is_lasting else "transient_fault"
        self._log.write(kind, step=step, devices=suspects, what=what)
        if not is_lasting:
            warnings.warn(
                f"step {step}: {what}; looked at again they agree, so that a device computed "
                "wrongly once and the parameters are intact",
                stacklevel=2,
            )
            return
        wrong = self._computing_wrongly(found, model)
        named = wrong or suspects
        raise_corruption(
            f"{what}. {_verdict(wrong, self._shown)}",
            devices=[self._devices[one] for one in named],
            where=f"step {step}; this state was not saved",
            hint=f"leave {self._shown(named)} out if it happens again, and start the run again: "
            "it resumes from its newest checkpoint",
        )

    def _described(self, found: list[_Disagreement]) -> str:
        names = [self._names[one.replicas.leaf] for one in found]
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        where = f"in {', '.join(names[:_MOST_NAMED])}{more}"
        decided = [one for one in found if one.is_decided]
        if not decided:
            both = self._shown(found[0].suspects)
            return f"{both} hold different bits {where}, and nothing shows which of them is right"
        suspects = sorted({device for one in decided for device in one.suspects})
        count = len(decided[0].replicas.devices)
        return f"{self._shown(suspects)} contradicts most of {count} replicas {where}"

    def _shown(self, devices: Any) -> str:
        return show_devices(self._devices[one] for one in devices)

    def _computing_wrongly(self, found: list[_Disagreement], model: Any) -> list[int]:
        """Return the suspects whose fingerprint of their own bits is not the host's."""
        sums, leaves = self._fingerprints(model), jax.tree.leaves(model)
        own = [
            shard.device.id
            for leaf, suspects in ((one.replicas.leaf, one.suspects) for one in found)
            for shard in leaves[leaf].addressable_shards
            if shard.device.id in suspects
            # The host's arithmetic is the judge: bits are copied as they
            # are, and numpy's result cannot be wrong in the same way.
            and sums[shard.device.id][leaf] != _on_host(shard, leaves[leaf])
        ]
        every = all_gather_object("looking for devices that compute wrongly", lambda: own)
        return sorted({device for one in every for device in one})


def raise_corruption(what: str, *, devices: Iterable[Any], where: str, hint: str) -> NoReturn:
    """End the run in all processes alike, given the devices that may be wrong.

    Raises:
        CorruptionError: One of them is of this process.
        ProcessError: None is; the process that has it is lost.
    """
    # Each process decides alike, from what all have gathered: the
    # one with the wrong device ends as corrupted, the others as
    # having lost it. So the supervisor knows whom to leave out.
    if process_index() not in {device.process_index for device in devices}:
        raise ProcessError(
            f"another process of the run was lost: {what}",
            where=where,
            hint="see what that process says, and start the run again; it resumes",
        )
    raise CorruptionError(what, where=where, hint=hint)


def show_devices(devices: Iterable[Any]) -> str:
    """Return devices as people read them: `device 2 (process 0) and device 3 (process 0)`."""
    each = (f"{device.id} (process {device.process_index})" for device in devices)
    return f"device {' and device '.join(each)}"


def _on_host(shard: Any, leaf: Any) -> int:
    return fingerprint_on_host(np.asarray(shard.data), leaf.shape, shard.index)


def _verdict(wrong: list[int], shown: Any) -> str:
    if wrong:
        return f"{shown(wrong)} still computes wrongly, which the host's arithmetic shows"
    return "All of them compute rightly now, so that bits flipped once or a step went wrong"


def replicas_of(tree: Any) -> list[Replicas]:
    """Return every group of two devices or more that hold the same part of a leaf."""
    return [one for at, leaf in enumerate(jax.tree.leaves(tree)) for one in _groups(at, leaf)]


def _groups(at: int, leaf: Any) -> Iterator[Replicas]:
    holders: dict[str, list[int]] = {}
    for device, index in leaf.sharding.devices_indices_map(leaf.shape).items():
        holders.setdefault(str(index), []).append(device.id)
    return (Replicas(at, tuple(ids)) for ids in holders.values() if len(ids) > 1)


def disagreements(groups: Sequence[Replicas], fingerprints: Fingerprints) -> list[_Disagreement]:
    """Return the groups whose devices do not all have one fingerprint.

    The fingerprint of more than half is right.
    """
    found = ((one, [fingerprints[device][one.leaf] for device in one.devices]) for one in groups)
    return [
        _Disagreement(one, _odd(one.devices, sums)) for one, sums in found if len(set(sums)) > 1
    ]


def _odd(devices: Sequence[int], sums: Sequence[int]) -> tuple[int, ...]:
    ((common, count),) = Counter(sums).most_common(1)
    # Half against half says nothing.
    if 2 * count <= len(sums):
        return tuple(devices)
    return tuple(device for device, one in zip(devices, sums, strict=True) if one != common)
