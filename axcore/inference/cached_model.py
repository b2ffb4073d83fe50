"""`CachedModel`: a model that keeps what later tokens need of earlier ones.

Letters of shapes: B rows, T tokens of a row in a call, P pages of a row.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jaxtyping import Array, Float, Int

from axcore.config import evolve
from axcore.inference.request import EncoderSpec
from axcore.inference.weights import WeightConversion, default_device
from axcore.layers import (
    ENCODER_CACHE,
    KVCacheConfig,
    continued_rows,
    use_decode_matmul,
    using_adapters,
)
from axcore.modifiers import AdapterSlots, QuantizedWeights, for_serving, with_packed_weights
from axcore.module import DType, Module, ParamSpec, apply_updates, functional
from axcore.ops import are_panels_wanted, current_policy
from axcore.parallel import (
    ACTIVATION_RULES,
    ActivationSharding,
    Rules,
    make_mesh,
    partition_spec,
    put_everywhere,
    sharding_activations,
    where_divisible,
)

RULES: Rules = {**ACTIVATION_RULES, "batch": (), "time": (), ENCODER_CACHE: ()}
"""Each device has all rows of a call, which come and go, and its own heads and hidden units."""


class CachedModel:
    """A model with a `logits` entry, as `CausalLM` has, that is called with new tokens only.

    A model whose `logits` are of something else names the entry in `logits_of_call`. One with an
    encoder has an entry `store_inputs`, which `encode` calls.

    Each row is a text of its own, as long as the caller says. The caches are arrays that every
    call takes and gives back changed; the old ones are gone.

    Args:
        model: The model, as it is trained; its root takes its sizes from its own config.
        state: Its state; None makes no weights.
        cache_config: How much there is room for; every call has all rows.
        mesh: Where weights and caches are stored; by default where the state is.
        quantization: Stores weights in low precision; None stores them as layers read them.
        adapters: Adds slots for adapters; None adds none.
        compute: See `for_serving`.

    Attributes:
        model: The model that serves.
        weights: Those of `state`.
        conversion: What makes weights of any state.
    """

    def __init__(
        self,
        model: Module,
        state: Any,
        cache_config: KVCacheConfig,
        *,
        mesh: Mesh | None = None,
        quantization: QuantizedWeights | None = None,
        adapters: AdapterSlots | None = None,
        compute: DType | None = None,
    ) -> None:
        served = for_serving(model.config, cache_config, current_policy().hardware, compute=compute)
        self.num_rows = cache_config.num_rows
        self.vocab_size: int = getattr(served, "vocab_size")  # noqa: B009 - not of every model
        trained = model.param_specs()
        # By the paths that keys are folded from, which are the same for
        # scanned and unrolled layers. What has none of these is a cache.
        known = {path for spec in _leaves(trained) for path in spec.rng_paths()}
        kept, self._caches = _split(
            served.build().param_specs(), lambda spec: spec.rng_paths()[0] in known
        )
        self._mesh = mesh_of(state) if mesh is None else _beyond_default(mesh)
        self.has_adapters = adapters is not None
        if adapters is not None:
            # An encoder's soft tokens are shared by requests, whatever adapter they name.
            own = {name: getattr(served, name) for name in getattr(served, "sized_parts", ())}
            served = evolve(adapters.apply(served), **own)
        if quantization is not None:
            served = quantization.apply(served)
        self.model: Module = served.build()
        # Packed weights are for the products of a host's processor; a mesh splits plain ones.
        if self._mesh is None and are_panels_wanted(self.model.dtypes.compute):
            self.model = with_packed_weights(served).build()
        caches = {spec.state_path for spec in _leaves(self._caches)}
        own, _ = _split(self.model.param_specs(), lambda spec: spec.state_path not in caches)
        read = jax.tree.map(lambda spec: spec.stored_as_read, own, is_leaf=_is_spec)
        self._logits: str = getattr(self.model, "logits_of_call", "logits")
        self.conversion = WeightConversion(trained, kept, read, self._mesh)
        self.weights = None if state is None else self.conversion.whole(state)
        # A cache with a row for each text cannot be shared or taken back; pages can.
        self.keeps_pages_only = not any("batch" in spec.axes for spec in _leaves(self._caches))
        # Donated: there is no room for the caches twice.
        self.extend = jax.jit(self.step, donate_argnums=1)

    def weights_of(self, state: Any, draft_state: Any = None) -> Any:
        """Return what programs take of a state; there is no draft."""
        return self.conversion.whole(state)

    @property
    def encoder(self) -> EncoderSpec | None:
        """Its encoder of other inputs than text, if it has one."""
        model: Any = self.model
        spec = getattr(model, "input_spec", None)
        if spec is None:
            return None
        return EncoderSpec(spec, model.num_soft_tokens, model.num_kept_inputs)

    @property
    def are_pages(self) -> Any:
        """Of each cache, whether its first dimension is pages."""
        return jax.tree.map(
            lambda spec: spec.axes[0] != ENCODER_CACHE, self._caches, is_leaf=_is_spec
        )

    def encode(self, weights: Any, caches: Any, inputs: Any, slots: Int[Array, " n"]) -> Any:
        """Return caches with what is kept of inputs in some slots; pure, as `step`.

        That is the soft tokens of pictures, or the keys and values of a decoder's sources.
        """
        with self._on_mesh():
            _, outputs = functional(
                self.model, _merged(weights, caches), inputs, slots, method="store_inputs"
            )
        return self._placed(apply_updates(caches, outputs.updates))

    def empty_caches(self) -> Any:
        """Return caches of rows without a token."""
        return put_everywhere(self._zeros(), self.cache_shardings)

    def _zeros(self) -> Any:
        return jax.tree.map(
            lambda spec: jnp.zeros(spec.shape, spec.dtype), self._caches, is_leaf=_is_spec
        )

    @property
    def abstract_caches(self) -> Any:
        """Shape, type and place of each cache."""
        alone = SingleDeviceSharding(default_device())
        places = self.cache_shardings or jax.tree.map(lambda _: alone, self._caches)

        def of_spec(spec: ParamSpec, place: Any) -> Any:
            return spec.abstract.update(sharding=place)  # type: ignore[no-untyped-call]

        return jax.tree.map(of_spec, self._caches, places, is_leaf=_is_spec)

    @property
    def cache_bytes(self) -> int:
        """What caches take on a device."""
        return sum(size for _, size in self._sizes())

    @property
    def fixed_cache_bytes(self) -> int:
        """Of that, what does not depend on how many pages there are."""
        return sum(size for spec, size in self._sizes() if {"batch", ENCODER_CACHE} & {*spec.axes})

    def _sizes(self) -> list[tuple[ParamSpec, int]]:
        """Return each cache and the bytes that it takes on a device."""
        shardings = self.cache_shardings
        leaves = _leaves(self._caches)
        parts: list[Any] = [None] * len(leaves) if shardings is None else jax.tree.leaves(shardings)
        shapes = [
            spec.shape if part is None else part.shard_shape(spec.shape)
            for spec, part in zip(leaves, parts, strict=True)
        ]
        return [
            (spec, math.prod(shape) * jnp.dtype(spec.dtype).itemsize)
            for shape, spec in zip(shapes, leaves, strict=True)
        ]

    @property
    def cache_shardings(self) -> Any:
        """The sharding of caches on the weights' mesh: heads as activations; None without one."""
        if self._mesh is None:
            return None
        mesh = self._mesh

        def lies(spec: ParamSpec) -> NamedSharding:
            parts = partition_spec(spec.axes, RULES, mesh, where=spec.name)
            return where_divisible(NamedSharding(mesh, parts), spec.shape)

        return jax.tree.map(lies, self._caches)

    def step(
        self,
        weights: Any,
        caches: Any,
        tokens: Int[Array, "B T"],
        num_cached: Int[Array, " B"],
        num_new: Int[Array, " B"],
        *,
        slots: Int[Array, " B"] | None = None,
        page_table: Int[Array, "B P"] | None = None,
        adapters: Int[Array, " B"] | None = None,
    ) -> tuple[Float[Array, "B vocab"], Any]:
        """Return the logits after the last new token of each row, and the caches with all of them.

        It is pure, to be a part of programs.

        Args:
            weights: `self.weights`.
            caches: Of the tokens before.
            tokens: New tokens of each row from the left, filled up with any.
            num_cached: Number of tokens before them.
            num_new: Number of new tokens of each row; a row that has none is left as it is.
            slots: Row of the caches that each row has; None where all rows are there in order.
            page_table: Pages of each row, where the caches have pages.
            adapters: Number of each row's adapter, -1 for none.
        """
        # A row without new tokens has place 0, whose logits nobody reads.
        last = jnp.maximum(num_new - 1, 0)[:, None]
        logits, caches = self.step_at(
            weights,
            caches,
            tokens,
            num_cached,
            num_new,
            at=last,
            slots=slots,
            page_table=page_table,
            adapters=adapters,
        )
        return logits[:, 0], caches

    def step_at(
        self,
        weights: Any,
        caches: Any,
        tokens: Int[Array, "B T"],
        num_cached: Int[Array, " B"],
        num_new: Int[Array, " B"],
        *,
        at: Int[Array, "B N"],
        slots: Int[Array, " B"] | None = None,
        page_table: Int[Array, "B P"] | None = None,
        adapters: Int[Array, " B"] | None = None,
    ) -> tuple[Float[Array, "B N vocab"], Any]:
        """Return what `step` does, with the logits after new tokens at some places of each row."""
        info = continued_rows(tokens, num_cached, num_new, slots=slots, page_table=page_table)
        with self._on_mesh(), using_adapters(adapters), self._products():
            logits, outputs = functional(
                self.model, _merged(weights, caches), tokens, info, at=at, method=self._logits
            )
        return logits, self._placed(apply_updates(caches, outputs.updates))

    def _placed(self, caches: Any) -> Any:
        """Return caches in a program, sharded as those that it takes."""
        if self._mesh is None:
            return caches
        # Without the constraint XLA may lay the caches out
        # otherwise, and the donated buffers would not be reused.
        return jax.lax.with_sharding_constraint(caches, self.cache_shardings)  # type: ignore[no-untyped-call]

    def hidden(
        self, weights: Any, tokens: Int[Array, "B T"], num_tokens: Int[Array, " B"]
    ) -> Float[Array, "B T D"]:
        """Return the normalised vector of each token of texts from their beginning; pure.

        Args:
            weights: `self.weights`.
            tokens: Of each row from the left, filled up with any.
            num_tokens: Number of tokens of each row.
        """
        caches = self._placed(self._zeros())
        info = continued_rows(tokens, jnp.zeros_like(num_tokens), num_tokens)
        nobody = jnp.full_like(num_tokens, -1) if self.has_adapters else None
        with self._on_mesh(), using_adapters(nobody), self._products():
            state = _merged(weights, caches)
            found: Array
            found, _ = functional(self.model, state, tokens, info, method="hidden")
        return found

    def _products(self) -> AbstractContextManager[None]:
        return use_decode_matmul() if self._mesh is None else nullcontext()

    def _on_mesh(self) -> AbstractContextManager[None]:
        if self._mesh is None:
            return nullcontext()
        return sharding_activations(ActivationSharding(self._mesh, RULES))


def mesh_of(weights: Any) -> Mesh | None:
    """Return the mesh of arrays; None where they are on the device that jax takes itself.

    Arrays on one other device have a mesh of it alone, so that all else follows them there.
    """
    own = {default_device()}
    elsewhere = None
    for leaf in jax.tree.leaves(weights):
        lies = getattr(leaf, "sharding", None)
        if isinstance(lies, NamedSharding) and lies.mesh.size > 1:
            return cast(Mesh, lies.mesh)
        if isinstance(leaf, jax.Array) and leaf.devices() != own:
            elsewhere = elsewhere or make_mesh({}, sorted(leaf.devices(), key=lambda one: one.id))
    return elsewhere


def _beyond_default(mesh: Mesh) -> Mesh | None:
    """Return a mesh unless it is the device alone that jax takes itself."""
    return None if {*mesh.devices.flat} == {default_device()} else mesh


def _is_spec(node: Any) -> bool:
    return isinstance(node, ParamSpec)


def _leaves(specs: Any) -> list[ParamSpec]:
    return jax.tree.leaves(specs, is_leaf=_is_spec)


def _split(specs: Any, is_in: Callable[[ParamSpec], bool]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the specs that are in, and the others: trees without empty branches."""
    parts: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for name, below in specs.items():
        if _is_spec(below):
            parts[0 if is_in(below) else 1][name] = below
            continue
        for part, found in zip(parts, _split(below, is_in), strict=True):
            if found:
                part[name] = found
    return parts


def _merged(one: Any, other: Any) -> Any:
    """Return a tree with the branches of both."""
    return {
        **one,
        **{
            name: _merged(one[name], below) if name in one else below
            for name, below in other.items()
        },
    }


class ModelInput(NamedTuple):
    """The rows of a call: columns of one array.

    Args:
        slots: Of the caches; of padding one out of range.
        starts: Tokens that came before.
        sizes: Tokens of the row, or that are sampled one after the other.
        first: Number of the answer's tokens before the first that is sampled.
        samples: 1 where the row samples, else 0.
        wants_logprobs: Which log-probabilities are wanted; see `WantedLogprobs`.
        adapters: Number of the row's adapter; -1 for none.
        pages: Of the row, `[B, P]`.
        tokens: New ones, `[B, T]`; none where rows continue from what they drew.
    """

    slots: Int[Array, " B"]
    starts: Int[Array, " B"]
    sizes: Int[Array, " B"]
    first: Int[Array, " B"]
    samples: Int[Array, " B"]
    wants_logprobs: Int[Array, " B"]
    adapters: Int[Array, " B"]
    pages: Int[Array, "B P"]
    tokens: Int[Array, "B T"]


NUM_COLUMNS = 7
"""Columns of a call's array before pages and tokens."""


def model_input(call: Int[Array, "B columns"], num_pages: int) -> ModelInput:
    """Return what the columns of a call's array mean."""
    slots, starts, sizes, first, samples, wants, adapters = call[:, :NUM_COLUMNS].T
    end = NUM_COLUMNS + num_pages
    return ModelInput(
        slots,
        starts,
        sizes,
        first,
        samples,
        wants,
        adapters,
        call[:, NUM_COLUMNS:end],
        call[:, end:],
    )
