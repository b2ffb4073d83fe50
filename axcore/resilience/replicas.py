"""Which devices hold the same bits, and which of them disagree about them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import jax

from axcore.resilience.fingerprint import Fingerprints


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
class Disagreement:
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


def replicas_of(tree: Any) -> list[Replicas]:
    """Returns every group of two devices or more that hold the same part of a leaf."""
    return [one for at, leaf in enumerate(jax.tree.leaves(tree)) for one in _groups(at, leaf)]


def _groups(at: int, leaf: Any) -> Iterator[Replicas]:
    holders: dict[str, list[int]] = {}
    for device, index in leaf.sharding.devices_indices_map(leaf.shape).items():
        holders.setdefault(str(index), []).append(device.id)
    return (Replicas(at, tuple(ids)) for ids in holders.values() if len(ids) > 1)


def disagreements(groups: Sequence[Replicas], fingerprints: Fingerprints) -> list[Disagreement]:
    """Returns the groups whose devices do not all have one fingerprint.

    The fingerprint of more than half is right.
    """
    found = ((one, [fingerprints[device][one.leaf] for device in one.devices]) for one in groups)
    return [Disagreement(one, _odd(one.devices, sums)) for one, sums in found if len(set(sums)) > 1]


def _odd(devices: Sequence[int], sums: Sequence[int]) -> tuple[int, ...]:
    ((common, count),) = Counter(sums).most_common(1)
    if 2 * count <= len(sums):
        return tuple(devices)
    return tuple(device for device, one in zip(devices, sums, strict=True) if one != common)
