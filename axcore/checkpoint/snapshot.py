"""A state in host memory, from which it can be written again after training has moved on."""

from collections.abc import Mapping
from typing import Any

import attrs
import jax
import jax.numpy as jnp
import numpy as np


class Snapshot:
    """This process's shards of a state.

    `np.asarray` keeps its result with the shard, so these are mostly the very host copies that a
    save makes anyway. Arrays are rebuilt in host memory: the devices may have no room.
    """

    def __init__(self, arrays: Mapping[str, jax.Array]) -> None:
        self._leaves = {name: _Leaf.of(array) for name, array in arrays.items()}

    def arrays(self) -> dict[str, jax.Array]:
        """Returns the state's leaves by name, sharded as they were."""
        return {name: leaf.rebuild() for name, leaf in self._leaves.items()}


@attrs.frozen
class _Leaf:
    shape: tuple[int, ...]
    sharding: jax.sharding.Sharding
    shards: list[tuple[Any, np.ndarray]]
    key_impl: str | None

    @classmethod
    def of(cls, array: jax.Array) -> "_Leaf":
        is_key = jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
        key_impl = str(jax.random.key_impl(array)) if is_key else None
        plain = jax.random.key_data(array) if is_key else array
        return cls(plain.shape, plain.sharding, _host_shards(plain), key_impl)

    def rebuild(self) -> jax.Array:
        sharding = self.sharding
        if any(device.platform != "cpu" for device, _ in self.shards):
            sharding = sharding.with_memory_kind("pinned_host")
        kind = sharding.memory_kind
        parts = [
            jax.device_put(data, jax.sharding.SingleDeviceSharding(device, memory_kind=kind))
            for device, data in self.shards
        ]
        whole = jax.make_array_from_single_device_arrays(self.shape, sharding, parts)
        return jax.random.wrap_key_data(whole, impl=self.key_impl) if self.key_impl else whole


def _host_shards(array: jax.Array) -> list[tuple[Any, np.ndarray]]:
    """Returns each device with its data; replicas share one copy, the one that is written."""
    shards = sorted(array.addressable_shards, key=lambda shard: shard.replica_id)
    written = {str(shard.index): shard.data for shard in reversed(shards)}
    for data in written.values():
        data.copy_to_host_async()
    return [(shard.device, np.asarray(written[str(shard.index)])) for shard in shards]
