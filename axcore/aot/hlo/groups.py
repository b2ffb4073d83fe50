"""Which devices take part in a collective together, by the ways in which XLA writes it.

Every device once, as `{{0,1},{2,3}}`; an iota, reshaped and transposed, as `[2,4]<=[4,2]T(1,0)`; or
by axes of a mesh, as `mesh['x'=2,'y'=4] {'y'}`, where `'y':(2)2` is a part of an axis: 2 large,
with steps of 4 / (2 * 2). Groups of one collective are alike: the first represents all.
"""

import math
import re

import numpy as np

_LISTED = re.compile(r"replica_groups=\{(?:\{([\d,]*)\})?")
_COUNTED = re.compile(r"replica_groups=\[\d+,(\d+)\]<=(\[[\d,]+\](?:T\([\d,]+\))?)")
_MESH = re.compile(
    r"replica_groups=mesh\[([^\]]*)\]"
    r"(?:, ?device_ids=\((\[[\d,]+\](?:T\([\d,]+\))?)\))? ?\{([^}]*)\}"
)
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
_IOTA = re.compile(r"\[([\d,]+)\](?:T\(([\d,]+)\))?")
_AXIS = re.compile(r"'(\w+)'=(\d+)")
_USED = re.compile(r"'(\w+)'(?::\((\d+)\)(\d+))?")


def first_group(text: str, num_devices: int) -> tuple[int, ...]:
    """Returns the devices of the first group: all of them where the text names none.

    Args:
        text: The attributes of the collective.
        num_devices: Of the whole program.
    """
    mesh = _MESH.search(text)
    if mesh:
        return _of_mesh(*mesh.groups())
    counted = _COUNTED.search(text)
    if counted:
        return tuple(int(one) for one in _iota(counted[2])[: int(counted[1])])
    listed = _LISTED.search(text)
    if listed and listed[1]:
        return tuple(int(one) for one in listed[1].split(","))
    return tuple(range(num_devices))


def source_target_pairs(text: str) -> tuple[tuple[int, int], ...]:
    """Returns who sends to whom in a permutation."""
    found = _PAIRS.search(text)
    numbers = [int(one) for one in re.findall(r"\d+", found[1])] if found else []
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def _iota(text: str) -> np.ndarray:
    """Returns the devices that `[2,4]T(1,0)` counts: 0 to 7 as two rows of four, by columns."""
    found = _IOTA.match(text)
    assert found is not None, text
    dims = [int(size) for size in found[1].split(",")]
    devices = np.arange(math.prod(dims)).reshape(dims)
    if found[2]:
        devices = devices.transpose([int(dim) for dim in found[2].split(",")])
    return devices.reshape(-1)


def _of_mesh(axes: str, devices: str | None, used: str) -> tuple[int, ...]:
    sizes = {name: int(size) for name, size in _AXIS.findall(axes)}
    parts: dict[str, list[tuple[int, int]]] = {name: [] for name in sizes}
    for name, before, size in _USED.findall(used):
        parts[name].append((int(before or 1), int(size or sizes[name])))
    dims: list[int] = []
    is_used: list[bool] = []
    for name, whole in sizes.items():
        passed = 1
        for before, size in sorted(parts[name]):
            dims += [before // passed, size]
            is_used += [False, True]
            passed = before * size
        dims.append(whole // passed)
        is_used.append(False)
    ids = _iota(devices) if devices else np.arange(math.prod(sizes.values()))
    first = ids.reshape(dims)[tuple(slice(None) if one else 0 for one in is_used)]
    return tuple(int(one) for one in first.reshape(-1))
