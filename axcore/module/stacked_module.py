"""Modules in a module: `StackedModule`, many copies of one, and where each is in the tree.

Copies run under `scan` or `vmap`, or in another order by a `StackRunner`. The body of a
transformation is a pure function of state, key, channels and arguments. Its losses, summaries,
updates and captures come out as values, so nothing is lost on the way.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array

from axcore.errors import ModuleError
from axcore.module.context import Context, Index, LayerLocation, ModuleLocation, current_context
from axcore.module.invoke import as_pure_function, own_state, split_static
from axcore.module.outputs import Outputs
from axcore.module.param import ParamSpec, stacked_spec
from axcore.module.rng import Path, fold, format_path

if TYPE_CHECKING:
    from axcore.module.module import Module


class StackedModule:
    """`count` copies of a module with one stacked state, run by `scan` or `vmap`.

    In `setup`: `self.layer = StackedModule(cfg.layer.build(dim=cfg.dim), cfg.num_layers)`.
    Copy `i` has the keys that item `i` of a tuple of modules of the same name would have.

    Args:
        module: The module.
        count: Number of copies.
        axis: Logical name of the leading dimension of every array of the state.
        rounds: Where more than 1, copies are laid out as `[rounds, count / rounds]`: every array
            has another dimension before that one, named `layers`.
    """

    def __init__(
        self, module: "Module", count: int, axis: str | None = "layers", *, rounds: int = 1
    ) -> None:
        # By its method: importing Module here would be a circle.
        if not hasattr(module, "forward"):
            raise ModuleError(f"a module is repeated, not a {type(module).__qualname__}")
        if count < 1:
            raise ModuleError(
                f"a module cannot be repeated {count} times", hint="repeat it once or more"
            )
        self.module = module
        self.count = count
        self.shape = (count,) if rounds == 1 else (rounds, count // rounds)
        self.axes = (axis,) if rounds == 1 else ("layers", axis)

    def specs_at(self, path: Path, seen: set[int]) -> dict[str, Any]:
        """Return the specs of all copies, stacked, at a path of the tree."""
        return self._stacked(self.module.specs_at(path, seen), len(path))

    def _stacked(self, specs: dict[str, Any], at: int) -> dict[str, Any]:
        return {
            name: stacked_spec(below, self.shape, self.axes, at)
            if isinstance(below, ParamSpec)
            else self._stacked(below, at)
            for name, below in specs.items()
        }

    def scan(self, carry: Any, *args: Any, unroll: int = 1, **kwargs: Any) -> Any:
        """Return `carry` passed through all copies in turn: `copy(carry, *args, **kwargs)`.

        The other arguments are the same for every copy. A channel that the first copies open is
        carried from there on: those copies are run before the scan begins. One step of the loop
        runs `unroll` copies; where that is all of them there is no loop.
        """
        context = self._context()
        pieces: list[Outputs] = []
        start = 0
        while start < self.count:
            # A scan's carry must have one structure, and what the first
            # layer opens is only known by tracing it. So it is tried, and
            # where the structure changes that layer is run before the loop.
            try:
                carry, outputs = self._scan_from(context, start, unroll, carry, args, kwargs)
                pieces.append(outputs)
                break
            except _ChannelsChanged:
                carry, outputs = self._run_one(context, start, carry, args, kwargs)
                pieces.append(jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], outputs))
                start += 1
        context.frame.outputs.absorb(_joined(pieces, context))
        return carry

    def call_stacked(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module makes of one call in which all copies take part.

        Every array that a module of this tree reads has the leading dimension of the copies; only
        modules that are made for it can run so.
        """
        return self.module(*args, **kwargs)

    def vmap(self, *args: Any, **kwargs: Any) -> Any:
        """Return the copies' results, stacked; copy `i` is given item `i` of each array."""
        result, outputs = self.vmap_with_outputs(*args, **kwargs)
        current_context("a StackedModule was called").frame.outputs.absorb(outputs)
        return result

    def vmap_with_outputs(self, *args: Any, **kwargs: Any) -> tuple[Any, Outputs]:
        """Return what `vmap` does, and the outputs, for the caller to pass on.

        Inside of a `shard_map` a device may hold the state of some of the copies only.
        """
        context = self._context()
        pure = as_pure_function(context, type(self.module).forward)
        arrays, rebuild = split_static((args, kwargs))
        channels = context.frame.channels
        key = context.key() if context.has_key else None

        def body(state: Any, key: Any, channels: Any, arrays: list[Any]) -> Any:
            return pure(state, key, channels, *rebuild(arrays))

        remat = self.module.config.remat
        wrapped = body if remat is None else remat.wrap(body)

        def one(state: Any, index: Array, arrays: list[Any]) -> Any:
            # The channels are those of the caller for each copy; what
            # one sends cannot reach another that runs at the same time.
            result, outputs, after = wrapped(state, folded(key, index), channels, arrays)
            if not same_structure(channels, after):
                raise ModuleError(
                    "a channel was opened under vmap, where copies run at once",
                    where=format_path(context.path),
                    hint="call set_shared before the vmap, or return the value",
                )
            return result, outputs

        state = self._in_a_row(context)
        # A device that holds some of the copies sees a shorter dimension than `count`.
        count_here = len(next(iter(jax.tree.leaves(state)), range(self.count)))
        result, outputs = jax.vmap(one)(state, jnp.arange(count_here), arrays)
        return result, outputs

    def _context(self) -> Context:
        return current_context("a StackedModule was called").child(self.module)

    def _in_a_row(self, context: Context) -> Any:
        """Return the stacked state with one leading dimension."""
        if len(self.shape) == 1:
            return own_state(context)
        # Stored as `[rounds, stages]`, which a pipeline
        # splits; run in a row it is one dimension again.
        rows = lambda leaf: leaf.reshape(-1, *leaf.shape[len(self.shape) :])  # noqa: E731
        return jax.tree.map(rows, own_state(context))

    def _body(
        self, context: Context, args: Any, kwargs: Any, *, in_loop: bool
    ) -> Callable[..., Any]:
        pure = as_pure_function(context, type(self.module).forward)
        arrays, rebuild = split_static((args, kwargs))
        root = context.key() if context.has_key else None

        unchanged: set[str] = set()

        def body(state: Any, index: Any, carry: Any, channels: Any, arrays: list[Any]) -> Any:
            inner_args, inner_kwargs = rebuild(arrays)
            key = folded(root, index)
            given = dict(channels)
            found = pure(state, key, channels, (carry, *inner_args), inner_kwargs, index)
            unchanged.update(name for name, one in given.items() if found[2].get(name) is one)
            return found

        remat = self.module.config.remat
        # Fully unrolled is not a loop to XLA, so the barrier against merging is needed there.
        wrapped = body if remat is None else remat.wrap(body, in_scan=in_loop)

        def run(state: Any, index: Any, carry: Any, channels: Any) -> Any:
            given = dict(channels)
            result, outputs, after = wrapped(state, index, carry, channels, arrays)
            # As they came: what leaves a recomputation is another array to a scan, which would keep
            # one of each copy for the backward pass, such as an encoder's tokens.
            return result, outputs, after | {name: given[name] for name in unchanged}

        return run

    def _scan_from(
        self, context: Context, start: int, unroll: int, carry: Any, args: Any, kwargs: Any
    ) -> tuple[Any, Outputs]:
        body = self._body(context, args, kwargs, in_loop=unroll < self.count - start)
        channels = context.frame.channels

        def step(carried: Any, x: Any) -> Any:
            carry, channels = carried
            index, state = x
            carry, outputs, after = body(state, index, carry, channels)
            if not same_structure(channels, after):
                # Raised through jax's tracing, which is abandoned;
                # nothing of it is kept, as frames are new for each try.
                raise _ChannelsChanged
            return (carry, after), outputs

        state = self._in_a_row(context)
        rest = jax.tree.map(lambda leaf: leaf[start:], state) if start else state
        xs = (jnp.arange(start, self.count), rest)
        (carry, after), outputs = jax.lax.scan(step, (carry, channels), xs, unroll=unroll)
        # Only after the scan: a try that was abandoned must leave no tracer in the channels.
        context.frame.channels.update(after)
        return carry, outputs

    def _run_one(
        self, context: Context, index: int, carry: Any, args: Any, kwargs: Any
    ) -> tuple[Any, Outputs]:
        body = self._body(context, args, kwargs, in_loop=False)
        state = jax.tree.map(lambda leaf: leaf[index], self._in_a_row(context))
        carry, outputs, channels = body(state, index, carry, context.frame.channels)
        context.frame.channels.update(channels)
        return carry, outputs


class _ChannelsChanged(Exception):  # noqa: N818 - a signal, caught by `scan`
    """The body of a scan opened a channel, or changed the shape of one."""


def folded(key: Array | None, index: Any) -> Array | None:
    """Return the key of an index, None where there is no key."""
    return None if key is None else fold(key, index)


def same_structure(before: Any, after: Any) -> bool:
    """Return whether two trees hold arrays of the same shapes and dtypes in the same places."""
    return bool(_described(before) == _described(after))


def _described(tree: Any) -> Any:
    leaves, treedef = jax.tree.flatten(tree)
    # `typeof` has shape, dtype and weak type: a weak
    # type that changes makes a scan's carry another one.
    return treedef, [str(jax.typeof(leaf)) for leaf in leaves]


def _joined(pieces: list[Outputs], context: Context) -> Outputs:
    if len(pieces) == 1:
        return pieces[0]
    try:
        # Concatenated, since a scan's outputs have a leading
        # dimension of layers, and those before it are pieces of one.
        joined: Outputs = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *pieces)
    except ValueError as error:
        raise ModuleError(
            "layers of one scan add different losses, summaries or updates",
            where=format_path(context.path),
            hint="add the same in every layer, or use an unrolled stack",
        ) from error
    return joined


class StackRunner:
    """The copies of a `StackedModule` at work: any of them, in any order, each as a pure function.

    The caller merges what they add and passes it on, with `finish`.

    Attributes:
        state: The stacked state.
        specs: Of that state.
        channels: Values in the channels that are open.
    """

    def __init__(self, repeated: StackedModule) -> None:
        context = current_context("copies of a module were run").child(repeated.module)
        self._module = repeated.module
        self._context = context
        self._root = context.key() if context.has_key else None
        self.state = context.state if context.frame.has_state_at(context.path) else {}
        self.specs = repeated.specs_at(context.path, set())
        # A copy, since several parts of a batch run with their own values until `finish`.
        self.channels = dict(context.frame.channels)

    def copy(
        self, index: Any, part: Any = None, select: Callable[[Any], Any] | None = None
    ) -> Callable[..., tuple[Any, dict[str, Any], Outputs]]:
        """Return one copy as `(state, x, channels, args) -> (x, channels, outputs)`, pure.

        That function raises a ModuleError where the copy opens a channel, or captures a value.

        Args:
            index: Which copy it is; may be traced.
            part: Which part of a batch the call is for: each has random keys of its own. None
                where the call is for all of it.
            select: What takes the copy's state out of the one that the function is given. Under
                the module's `Remat` backward takes it out again, and keeps none.
        """
        pure = as_pure_function(self._context, type(self._module).forward)
        # By its number in the stack, so that a pipeline samples what a scan of the same layers
        # does.
        key = folded(self._root, index)
        # One more fold for a part, or each micro-batch would get the same dropout mask.
        key = key if part is None else folded(key, part)
        remat = self._module.config.remat

        def run(state: Any, x: Any, channels: dict[str, Any], args: tuple[Any, ...]) -> Any:
            arrays, rebuild = split_static(args)

            def body(
                state: Any, index: Any, key: Any, x: Any, channels: Any, arrays: list[Any]
            ) -> Any:
                own = state if select is None else select(state)
                return pure(own, key, channels, (x, *rebuild(arrays)), {}, index)

            wrapped = body if remat is None else remat.wrap(body, in_scan=True)
            x, outputs, after = wrapped(state, index, key, x, channels, arrays)
            self._check(channels, after, outputs)
            return x, after, outputs

        return run

    def finish(self, channels: dict[str, Any], outputs: Outputs) -> None:
        """Pass on what all copies added, and the values shared after them."""
        self._context.frame.outputs.absorb(outputs)
        self._context.frame.channels.update(channels)

    def _check(self, before: Any, after: Any, outputs: Outputs) -> None:
        where = format_path(self._context.path)
        # A pipeline's buffer has one shape for all stages, made before the first runs.
        if not same_structure(before, after):
            raise ModuleError(
                "a channel was opened, or changed its shape, by layers that run on parts of a "
                "batch at once",
                where=where,
                hint="open it before these layers, or run them in sequence: ScannedLayers",
            )
        if outputs.captures:
            raise ModuleError(
                f"{', '.join(outputs.captures)} cannot be captured in layers that run on parts of "
                "a batch at once",
                where=where,
                hint="use ScannedLayers, whose state is the same, to look inside",
            )


@runtime_checkable
class ModuleNode(Protocol):
    """What a module can have as a child: a module, or a `StackedModule` of one."""

    def specs_at(self, path: Path, seen: set[int]) -> dict[str, Any]:
        """Return the specs at a path of the tree, but for modules in `seen`, which it adds to."""


def index_of(module: "Module") -> Index:
    """Return the places of all modules of a tree; a shared one is where it comes first.

    Raises:
        ModuleError: A module in a `StackedModule` is shared with a module outside of it.
    """
    # Kept with the module: the tree never changes after
    # setup, and each call of `functional` asks for it.
    index: Index | None = module.__dict__.get("_index")
    if index is None:
        index = {id(module): ModuleLocation((), (), 0, ())}
        _add_children(module, (), (), index)
        module.__dict__["_index"] = index
    return index


def unwrapped(child: Any) -> "Module":
    """Return the module of a child, which a `StackedModule` may wrap."""
    inner: Module = child.module if isinstance(child, StackedModule) else child
    return inner


def num_layers(module: "Module") -> int:
    """Return how many layers a module is: one, or those of a stack and of the stacks in it."""
    parts = [child for steps, child in module.children() if _is_layer_of(module, steps)]
    return sum(_num_copies(part) * num_layers(unwrapped(part)) for part in parts) or 1


def _is_layer_of(module: "Module", steps: Path) -> bool:
    return module.layers_in is not None and steps[:1] == (module.layers_in,)


def _num_copies(child: Any) -> int:
    return child.count if isinstance(child, StackedModule) else 1


def _add_children(module: "Module", path: Path, stack: tuple[int, ...], index: Index) -> None:
    num_before, total = 0, num_layers(module)
    for steps, child in module.children():
        inner, here = unwrapped(child), (*path, *steps)
        is_stacked = isinstance(child, StackedModule)
        around = (*stack, id(child)) if is_stacked else stack
        layer = None
        if _is_layer_of(module, steps):
            layer = LayerLocation(num_before, num_layers(inner), total, is_stacked)
            num_before += _num_copies(child) * layer.size
        place = index.get(id(inner))
        # By identity: a shared module is one object in several
        # places, and has one place for its parameters, the first.
        if place is None:
            index[id(inner)] = ModuleLocation(here, steps, id(module), around, layer)
            _add_children(inner, here, around, index)
        elif _is_same_stack(child, place.stack, around):
            if layer is not None:
                shared = layer._replace(is_shared=True)
                index[id(inner)] = place._replace(layer=shared)
        else:
            raise ModuleError(
                f"a {type(inner).__qualname__} is shared between {format_path(place.path)} and "
                f"{format_path(here)}, but one of them stacks copies of its state",
                where=format_path(here),
                hint="build a separate module for the StackedModule",
            )


def _is_same_stack(child: Any, first: tuple[int, ...], around: tuple[int, ...]) -> bool:
    """Whether a shared module's state, stacked as at its first place, fits this place too.

    A module that is not stacked may be used inside of a `StackedModule`, by each copy alike.
    """
    return first == around if isinstance(child, StackedModule) else first == around[: len(first)]
