"""Which experts the routers of a model choose, recorded in one call and replayed in another.

Routes travel in channels of the context, so that a task can replay them in any model whose routers
read them, and knows no layer of experts.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Integer

from axcore.module import Module, StackedModule

RECORDED_ROUTES = "recorded_routes"
"""The shared value into which each router writes what it chose: a `Routes`."""

REPLAYED_ROUTES = "replayed_routes"
"""The shared value of which each router takes its choices, instead of choosing."""


class Routes(NamedTuple):
    """The experts that all routers of a call choose, in the order in which they run.

    Both arrays begin with the rows of the batch, so that what splits a batch splits them.

    Args:
        experts: Of each token at each router; of padding as well, where they mean nothing.
        router: How many routers have run, of each row.
    """

    experts: Integer[Array, "batch time routers choices"]
    router: Int[Array, " batch"]

    @classmethod
    def of(cls, experts: Integer[Array, "batch time routers choices"]) -> "Routes":
        """Return routes that no router has read yet."""
        return cls(experts, jnp.zeros(experts.shape[:1], jnp.int32))

    def read(self, top_k: int) -> tuple["Routes", Int[Array, "batch time choices"]]:
        """Return the choices of the router that runs, and the routes of those that follow."""
        found = jax.lax.dynamic_index_in_dim(self.experts, self.router[0], axis=2, keepdims=False)
        return self._replace(router=self.router + 1), found[..., :top_k].astype(jnp.int32)

    def written(self, experts_BTK: Int[Array, "batch time choices"]) -> "Routes":
        """Return the routes with what the router that runs chose."""
        fill = self.experts.shape[-1] - experts_BTK.shape[-1]
        own = jnp.pad(experts_BTK, ((0, 0), (0, 0), (0, fill))).astype(self.experts.dtype)
        experts = jax.lax.dynamic_update_index_in_dim(self.experts, own, self.router[0], axis=2)
        return Routes(experts, self.router + 1)


@runtime_checkable
class ChoosesExperts(Protocol):
    """A module that sends each token to some experts, and reads and writes `Routes`."""

    @property
    def num_choices(self) -> tuple[int, int]:
        """How many experts there are, and how many of them a token goes to."""


def routes_of_token(model: Module) -> jax.ShapeDtypeStruct:
    """Return shape `[routers, choices]` and dtype of a token's routes through a model.

    A model without routers has none: 0 of them.
    """
    found = list(_routers(model))
    most = max((router.num_choices[0] for router, _ in found), default=0)
    shape = (
        sum(times for _, times in found),
        max((one.num_choices[1] for one, _ in found), default=0),
    )
    dtype = jnp.uint8 if most <= 256 else jnp.uint16
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]


def _routers(module: Any) -> Iterator[tuple[ChoosesExperts, int]]:
    """Yield each router of a tree, and how many copies of it run."""
    if isinstance(module, ChoosesExperts):
        yield module, 1
    for _, child in module.children():
        inner, times = (
            (child.module, child.count) if isinstance(child, StackedModule) else (child, 1)
        )
        for router, copies in _routers(inner):
            yield router, copies * times
