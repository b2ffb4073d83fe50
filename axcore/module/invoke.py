"""Running a module: from a call of a child to a context, a named scope, and back.

At most three Python frames are added per nested call: `__call__`, `invoke`, and the method.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from axcore.errors import ModuleError
from axcore.module.context import Context, Frame, current, current_context, state_lacks
from axcore.module.outputs import Outputs, unused
from axcore.module.rng import Path, format_path
from axcore.plugins.host import plugin_of
from axcore.registration import note_owner

if TYPE_CHECKING:
    from axcore.module.module import Module

Method = Callable[..., Any]
PureFunction = Callable[..., tuple[Any, Outputs, dict[str, Any]]]


def invoke(module: "Module", method: Method, args: Any, kwargs: Any) -> Any:
    """Run a method of a module in a context of its own, as a child of the module at work."""
    caller = current.get()
    if caller is None:
        caller = current_context(f"a {type(module).__qualname__} was called")
    # A method that calls itself by `self(...)` stays in its context: it is not a child of its own.
    if caller.module is module:
        return method(module, *args, **kwargs)
    context = caller.child(module)
    if module.config.remat is not None:
        result = rematerialise(context, method, args, kwargs)
    # No `named_scope` there: the pure function enters its frame by `run`, which opens it.
    else:
        token = current.set(context)
        try:
            # Names of operations in profiles and dumps are module paths.
            with jax.named_scope(_scope(context.path)):
                result = method(module, *args, **kwargs)
        except Exception as error:
            _note_path(error, context)
            raise
        finally:
            current.reset(token)
        result = _finished(context, result)
    # Only of other packages' layers, for `_note_path`;
    # to describe each result costs time at every call.
    if not type(module).__module__.startswith("axcore."):
        caller.results[type(module)] = context.path, _described(result)
    return result


def run(context: Context, method: Method, args: Any, kwargs: Any) -> Any:
    """Run a method in a given context, the entrance to a frame."""
    # Reset in `finally`, as a notebook continues after an exception, in the same context.
    token = current.set(context)
    try:
        with jax.named_scope(_scope(context.path)):
            result = method(context.module, *args, **kwargs)
    except Exception as error:
        _note_path(error, context)
        raise
    finally:
        current.reset(token)
    return _finished(context, result)


def as_pure_function(context: Context, method: Method) -> PureFunction:
    """Return `(state, key, channels, args, kwargs, copy=None) -> (result, outputs, channels)`.

    `copy` is the number of the copy that runs, where a module is stacked.
    """

    def pure(
        state: Any,
        key: Array | None,
        channels: dict[str, Any],
        args: Any,
        kwargs: Any,
        copy: Any = None,
    ) -> tuple[Any, Outputs, dict[str, Any]]:
        outer = context.frame
        # A frame of its own, since what is added inside
        # of a transformation must leave it as a result.
        frame = Frame(
            path=context.path,
            state=state,
            key=key,
            is_training=outer.is_training,
            captures=outer.captures,
            channels=channels,
            outer=outer,
        )
        result = run(context.inside(frame, copy), method, args, kwargs)
        return result, frame.outputs, frame.channels

    return pure


def split_static(tree: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """Split a tree of arguments into its arrays and a function that puts others into their place.

    Numbers, flags and text stay as they are, so that a module can branch on them.
    """
    leaves, treedef = jax.tree.flatten(tree)
    is_array = [isinstance(leaf, (jax.Array, np.ndarray)) for leaf in leaves]
    arrays = [leaf for leaf, keep in zip(leaves, is_array, strict=True) if keep]

    def rebuild(new: list[Any]) -> Any:
        fresh = iter(new)
        pairs = zip(leaves, is_array, strict=True)
        return jax.tree.unflatten(treedef, [next(fresh) if keep else leaf for leaf, keep in pairs])

    return arrays, rebuild


def rematerialise(context: Context, method: Method, args: Any, kwargs: Any) -> Any:
    """Run a method under its module's `Remat`."""
    arrays, rebuild = split_static((args, kwargs))
    pure = as_pure_function(context, method)

    def body(state: Any, key: Array | None, channels: Any, arrays: list[Any]) -> Any:
        return pure(state, key, channels, *rebuild(arrays))

    frame = context.frame
    # Drawn outside of the checkpointed function, so that the
    # recomputation uses the same key and drops the same values.
    key = context.key() if context.has_key else None
    remat = context.module.config.remat
    assert remat is not None, "only modules that have one come here"
    wrapped = remat.wrap(body)
    result, outputs, channels = wrapped(own_state(context), key, frame.channels, arrays)
    frame.outputs.absorb(outputs)
    frame.channels.update(channels)
    return result


def own_state(context: Context) -> Any:
    """Return the state of a context's module, empty where it has none."""
    return context.state if context.frame.has_state_at(context.path) else {}


def capture(context: Context, path: Path, value: Any) -> None:
    """Keep a value where one of the call's patterns matches its path.

    Raises:
        ModuleError: The value contains something else than arrays and numbers.
    """
    is_wanted = [matches(path) for matches in context.frame.captures]
    if any(is_wanted):
        # A value of another kind would fail when the
        # transformation returns, where no path is known any more.
        check_arrays(value, f"what is captured of {format_path(path) or 'the root'}")
        captures = context.frame.outputs.captures
        captures[unused(format_path(path), captures)] = value


def check_arrays(tree: Any, what: str) -> None:
    """Check that a tree contains only what a transformation can return.

    Raises:
        ModuleError: It contains something else than arrays and numbers.
    """
    for leaf in jax.tree.leaves(tree):
        if not isinstance(leaf, (jax.Array, np.ndarray, np.generic, int, float, complex)):
            raise ModuleError(
                f"{what} contains a {type(leaf).__qualname__}; arrays and numbers can leave a "
                "transformation, nothing else",
            )


def array_of(module: "Module", name: str) -> Any:
    """Return an array of a module that is at work, or of any other in the tree that runs.

    Raises:
        ModuleError: No module is at work, or the state lacks the array.
    """
    context = current_context(f"{type(module).__qualname__}.{name} was read")
    if context.module is module:
        path, state = context.path, context.state
    else:
        place = context.index.get(id(module))
        if place is None:
            raise ModuleError(
                f"{type(module).__qualname__}.{name} was read, but the module is not part of the "
                "tree",
                hint="assign it in setup: self.child = cfg.child.build(...)",
            )
        path, state = place.path, context.frame.state_at(place.path)
    try:
        return state[name]
    except (KeyError, TypeError):
        raise state_lacks((*path, name)) from None


def _scope(path: Path) -> str:
    """Return the last step of a path as a name; the enclosing scopes have the steps before it."""
    # Layers of a tuple are called by number; `3` alone would say nothing in a profile.
    if path and isinstance(path[-1], int):
        return f"{path[-2]}_{path[-1]}"
    return str(path[-1]) if path else "model"


def _finished(context: Context, result: Any) -> Any:
    output = context.module.dtypes.output
    # Before captures: what a caller looks at is what the next layer gets.
    if output is not None:
        result = jax.tree.map(lambda leaf: _cast(leaf, output), result)
    if context.frame.captures:
        capture(context, context.path, result)
    return result


def _cast(leaf: Any, dtype: str) -> Any:
    is_float = hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)
    return leaf.astype(dtype) if is_float else leaf


def _note_path(error: Exception, context: Context) -> None:
    """Note on an exception, once and at the innermost module, where it came from.

    A plugin's layer that gives back something wrong raises nothing itself; what reads that does.
    So where plugins' layers ran before, it is noted what they returned.
    """
    # Once: each level above would add its own line otherwise, dozens in a deep model.
    if not hasattr(error, "__axcore_module__"):
        where, cls = format_path(context.path) or "the root", type(context.module)
        error.__axcore_module__ = where  # type: ignore[attr-defined]
        error.add_note(f"in module {where} ({cls.__qualname__})")
        note_owner(error, _of_plugin(cls), plugin_of(cls))
    if context.results and not hasattr(error, "__axcore_results__"):
        error.__axcore_results__ = True  # type: ignore[attr-defined]
        for cls, (path, result) in context.results.items():
            if plugin := plugin_of(cls):
                error.add_note(
                    f"before that, {format_path(path)}, {_of_plugin(cls)}, returned {result}; "
                    f"set AXCORE_BLOCK={plugin} to run without it"
                )


def _of_plugin(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__} of plugin {plugin_of(cls)!r}"


def _described(result: Any) -> str:
    """Return the types of a result's arrays, `float32[8,128]`, or the name of its own type."""
    arrays = [leaf for leaf in jax.tree.leaves(result) if hasattr(leaf, "dtype")]
    if not arrays:
        return type(result).__name__
    return ", ".join(f"{one.dtype}[{','.join(map(str, one.shape))}]" for one in arrays)
