"""One process's part of a state: the shards of its devices in one file, and a manifest.

The bytes are those of the shards, one after the other, so that a part is written and read at the
speed of memory. The manifest comes last; without it there is no part.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from axcore.checkpoint.integrity import find_damage, list_files, record_files
from axcore.checkpoint.leaves import LeafSpec, leaf_spec, mismatches
from axcore.checkpoint.manifest import (
    MANIFEST_NAME,
    DamagedCheckpointError,
    Manifest,
    read_manifest,
    write_manifest,
)

SHARDS_NAME = "shards.bin"
PART_FILES = (SHARDS_NAME, MANIFEST_NAME)
"""The files of a part, in the order in which they are written and copied."""

_ALIGNED_BYTES = 64

HostShards = dict[str, dict[str, np.ndarray]]
"""By leaf and place; the place of a shard is its range in each dimension, as "0:4,8:16"."""


def host_shards(arrays: Mapping[str, jax.Array]) -> HostShards:
    """Returns copies in host memory of what this process's devices hold, replicas once."""
    found = {
        name: {place_of(shard.index, array.shape): shard.data for shard in array.addressable_shards}
        for name, array in arrays.items()
    }
    for by_place in found.values():
        for data in by_place.values():
            data.copy_to_host_async()
    return {
        name: {place: np.asarray(data) for place, data in by_place.items()}
        for name, by_place in found.items()
    }


def place_of(index: tuple[slice, ...], shape: tuple[int, ...]) -> str:
    """Returns the place of a shard that has an index into an array."""
    ends = (one.indices(size)[:2] for one, size in zip(index, shape, strict=True))
    return ",".join(f"{begin}:{end}" for begin, end in ends)


def write_part(
    directory: Path,
    step: int,
    shards: HostShards,
    leaves: Mapping[str, LeafSpec],
    extra: Mapping[str, Any],
) -> None:
    """Writes a part into an empty directory."""
    offsets: dict[str, dict[str, int]] = {name: {} for name in shards}
    with (directory / SHARDS_NAME).open("wb") as file:
        for name, by_place in shards.items():
            for place, data in by_place.items():
                file.write(bytes(-file.tell() % _ALIGNED_BYTES))
                offsets[name][place] = file.tell()
                file.write(np.ascontiguousarray(data).reshape(-1).view(np.uint8).data)
    files = record_files(directory, list_files(directory))
    found = Manifest(step=step, leaves=leaves, files=files, extra={**extra, "offsets": offsets})
    write_manifest(directory, found)


def part_damage(directory: Path) -> list[str]:
    """Returns what is wrong with a part, one sentence each; empty where it is whole."""
    try:
        return find_damage(directory, read_manifest(directory).files)
    except (DamagedCheckpointError, OSError) as error:
        return [str(error)]


def part_fits(manifest: Manifest, wanted: Mapping[str, jax.ShapeDtypeStruct], process: int) -> bool:
    """Whether a part holds what the devices of a process are to hold."""
    specs = {name: leaf_spec(leaf) for name, leaf in wanted.items()}
    return not mismatches(manifest.leaves, specs) and all(
        _places(leaf, process) <= manifest.extra["offsets"][name].keys()
        for name, leaf in wanted.items()
    )


def load_part(
    directory: Path, manifest: Manifest, wanted: Mapping[str, jax.ShapeDtypeStruct]
) -> dict[str, jax.Array]:
    """Returns arrays of which this process's devices hold what a part does."""
    content = np.fromfile(directory / SHARDS_NAME, np.uint8)
    offsets = manifest.extra["offsets"]
    return {name: _load_leaf(content, offsets[name], leaf) for name, leaf in wanted.items()}


def _load_leaf(
    content: np.ndarray, offsets: Mapping[str, int], leaf: jax.ShapeDtypeStruct
) -> jax.Array:
    sharding = leaf.sharding
    shape = sharding.shard_shape(leaf.shape)
    num_bytes = math.prod(shape) * leaf.dtype.itemsize

    def put(device: Any, index: Any) -> jax.Array:
        begin = offsets[place_of(index, leaf.shape)]
        data = content[begin : begin + num_bytes].view(leaf.dtype).reshape(shape)
        array: jax.Array = jax.device_put(data, device)
        return array

    indices = sharding.addressable_devices_indices_map(leaf.shape)
    parts = [put(device, index) for device, index in indices.items()]
    return jax.make_array_from_single_device_arrays(leaf.shape, sharding, parts)


def _places(leaf: jax.ShapeDtypeStruct, process: int) -> set[str]:
    indices = leaf.sharding.devices_indices_map(leaf.shape)
    return {
        place_of(index, leaf.shape)
        for device, index in indices.items()
        if device.process_index == process
    }
