"""`functional`: a module as a pure function of its state."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar, overload

from jaxtyping import Array

from axcore.config.paths import matches, parse_pattern
from axcore.config.suggest import suggest_names
from axcore.errors import ModuleError
from axcore.module.context import Context, Frame, current
from axcore.module.invoke import rematerialise, run
from axcore.module.module import Module
from axcore.module.outputs import Outputs
from axcore.module.rng import Path, as_key, format_path
from axcore.module.stacked_module import index_of

SHOWN = 12
Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class _Forward(Protocol[Result_co]):
    """A module, by what its `forward` returns."""

    def forward(self, *args: Any, **kwargs: Any) -> Result_co: ...


@overload
def functional(
    module: _Forward[Result],
    state: Any,
    *args: Any,
    rng: Array | int | None = None,
    training: bool = False,
    capture: Iterable[str] = (),
    **kwargs: Any,
) -> tuple[Result, Outputs]: ...


@overload
def functional(
    module: Module,
    state: Any,
    *args: Any,
    method: str,
    rng: Array | int | None = None,
    training: bool = False,
    capture: Iterable[str] = (),
    **kwargs: Any,
) -> tuple[Any, Outputs]: ...


def functional(
    module: Any,
    state: Any,
    *args: Any,
    method: str = "forward",
    rng: Array | int | None = None,
    training: bool = False,
    capture: Iterable[str] = (),
    **kwargs: Any,
) -> tuple[Any, Outputs]:
    """Run a module on a state; pure, and fine under every jax transformation.

    Args:
        module: The root of the tree that runs.
        state: What `module.init` made, or a tree of that shape.
        *args: The method's own arguments.
        method: `forward`, or a method marked with `@entry`.
        rng: Random key or seed for the call, needed only if a module samples from it.
        training: The value of `self.training`.
        capture: Globs of module paths (`**.attention`, `decoder.layer[0].feed_forward.hidden`)
            whose results or captured values the caller wants in `outputs.captures`.
        **kwargs: The method's own keyword arguments.

    Returns:
        The method's result, and the losses, summaries, updates and captures of the call.

    Raises:
        ModuleError: The method is not an entry, the state does not belong to the module or has keys
            that the module lacks, or a pattern of `capture` matches nothing that ran.
    """
    # jax ignores what is not read: a renamed parameter would
    # be trained as its first value and never be missed.
    _check_keys(module, state)
    captures = tuple(CapturePattern(pattern) for pattern in capture)
    frame = Frame(
        path=(),
        state=state,
        key=None if rng is None else as_key(rng),
        is_training=training,
        captures=captures,
    )
    context = Context(module, (), frame, index_of(module), lambda: frame.key)
    apply = run if module.config.remat is None else rematerialise
    # None, so that a module that is run inside of another's
    # forward by `functional` does not believe to be its child.
    token = current.set(None)
    try:
        result = apply(context, _entry(module, method), args, kwargs)
    finally:
        current.reset(token)
    # After the call, since only then is it known what ran.
    for pattern in captures:
        if not pattern.has_matched:
            raise _nothing_captured(module, pattern.text)
    return result, frame.outputs


def _check_keys(module: Module, state: Any) -> None:
    """Check that a module has every key of a state: what it lacks would have no effect."""
    keys = module.__dict__.get("_state_keys")
    # Kept in `__dict__`, past `__setattr__`, which refuses changes after setup.
    if keys is None:  # kept with the module, since `functional` may be called once a step, eagerly
        specs = module.param_specs()
        keys = _keys({**specs, **module.kept_specs(specs)})
        module.__dict__["_state_keys"] = keys
    if unknown := [format_path(path) for path in _unknown(state, keys, ())]:
        known = [format_path(path) for path in _paths(keys, ())]
        raise ModuleError(
            f"the state has {len(unknown)} keys that the {type(module).__qualname__} does not "
            f"have: {', '.join(unknown[:SHOWN])}{', ...' if len(unknown) > SHOWN else ''}",
            where=unknown[0],
            hint=suggest_names(unknown[0], known)
            + "; take out what is not the module's, or make the state with module.init(rng)",
        )


def _keys(specs: Any) -> dict[str, Any] | None:
    """Return the keys of a state, nested as they are; None for an array."""
    return {k: _keys(below) for k, below in specs.items()} if isinstance(specs, dict) else None


def _unknown(state: Any, keys: Any, path: Path) -> Iterator[Path]:
    """Yield the paths of keys that are not known, without what is below them."""
    # A quantized or offloaded array may be a mapping of its own; its keys are its business.
    if not isinstance(state, Mapping) or keys is None:
        return  # an array, or a value in its place
    for name, below in state.items():
        if name in keys:
            yield from _unknown(below, keys[name], (*path, name))
        else:
            yield (*path, name)


def _paths(keys: Any, path: Path) -> Iterator[Path]:
    for name, below in (keys or {}).items():
        yield (*path, name)
        yield from _paths(below, (*path, name))


class CapturePattern:
    """A glob of module paths that remembers whether it matched any."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.has_matched = False
        self._parsed = parse_pattern(text)

    def __call__(self, path: Path) -> bool:
        """Return whether the path matches."""
        is_match = matches(self._parsed, path)
        self.has_matched = self.has_matched or is_match
        return is_match


def _nothing_captured(module: Module, pattern: str) -> ModuleError:
    paths = [format_path(place.path) for place in index_of(module).values()]
    return ModuleError(
        f"capture={pattern!r} matches no module that ran, and no value that one captured",
        hint=suggest_names(pattern, [path for path in paths if path])
        + " (copies of a StackedModule share one path, without an index)",
    )


def _entry(module: Module, name: str) -> Callable[..., Any]:
    if name == "forward":
        return type(module).forward
    found = getattr(type(module), name, None)
    method: Callable[..., Any] | None = getattr(found, "__axcore_entry__", None)
    # Any other method would run in the caller's context, with the caller's keys and outputs.
    if method is None:
        entries = sorted(
            key
            for key in dir(type(module))
            if hasattr(getattr(type(module), key), "__axcore_entry__")
        )
        raise ModuleError(
            f"{type(module).__qualname__} has no entry method {name!r}; it has forward"
            + "".join(f", {key}" for key in entries),
            hint="mark the method with @entry",
        )
    return method
