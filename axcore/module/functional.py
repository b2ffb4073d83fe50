"""`functional`: a module as a pure function of its state."""

from collections.abc import Callable, Iterable
from typing import Any

from jaxtyping import Array

from axcore.config.paths import matches, parse_pattern
from axcore.errors import ModuleError
from axcore.module.context import Context, Frame, Index, Place, current
from axcore.module.invoke import run
from axcore.module.lift import Repeated
from axcore.module.module import Module
from axcore.module.outputs import Outputs
from axcore.module.streams import Path, as_key


def functional(
    module: Module,
    state: Any,
    *args: Any,
    method: str = "forward",
    rng: Array | int | None = None,
    training: bool = False,
    capture: Iterable[str] = (),
    **kwargs: Any,
) -> tuple[Any, Outputs]:
    """Runs a module on a state; pure, and fine under every jax transformation.

    Args:
        module: The root of the tree that runs.
        state: What `module.init` made, or a tree of that shape.
        *args: The method's own arguments.
        method: `forward`, or a method marked with `@entry`.
        rng: Random key or seed for the call, needed only if a module draws from it.
        training: What `self.training` tells.
        capture: Globs of module paths (`**.attention`, `decoder.layer[0].feed_forward.hidden`)
            whose results or captured values the caller wants in `outputs.captures`.
        **kwargs: The method's own keyword arguments.

    Returns:
        The method's result, and the losses, summaries, updates and captures of the call.

    Raises:
        ModuleError: The method is no entry, or the state does not belong to the module.
    """
    frame = Frame(
        path=(),
        state=state,
        key=None if rng is None else as_key(rng),
        is_training=training,
        captures=tuple(_matcher(pattern) for pattern in capture),
    )
    context = Context(module, (), frame, index_of(module), lambda: frame.key)
    token = current.set(None)
    try:
        result = run(context, _entry(module, method), args, kwargs)
    finally:
        current.reset(token)
    return result, frame.outputs


def _matcher(pattern: str) -> Callable[[Path], bool]:
    parsed = parse_pattern(pattern)
    return lambda path: matches(parsed, path)


def _entry(module: Module, name: str) -> Callable[..., Any]:
    if name == "forward":
        return type(module).forward
    found = getattr(type(module), name, None)
    method: Callable[..., Any] | None = getattr(found, "__axcore_entry__", None)
    if method is None:
        entries = sorted(
            key
            for key in dir(type(module))
            if hasattr(getattr(type(module), key), "__axcore_entry__")
        )
        raise ModuleError(
            f"{type(module).__qualname__} has no entry method {name!r}; it has forward"
            + "".join(f", {key}" for key in entries),
            mend="mark the method with @entry",
        )
    return method


def index_of(module: Module) -> Index:
    """Returns the places of all modules of a tree; a shared one stands where it comes first."""
    index: Index | None = module.__dict__.get("_index")
    if index is None:
        index = {id(module): Place((), (), 0)}
        _add_children(module, (), index)
        module.__dict__["_index"] = index
    return index


def _add_children(module: Module, path: Path, index: Index) -> None:
    for steps, child in module.children():
        inner = child.module if isinstance(child, Repeated) else child
        if id(inner) not in index:
            index[id(inner)] = Place((*path, *steps), steps, id(module))
            _add_children(inner, (*path, *steps), index)
