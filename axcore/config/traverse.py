"""Walking and rebuilding config trees, through nested configs, tuples and mappings alike."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import attrs
from immutabledict import immutabledict

from axcore.config.define import field_names
from axcore.config.paths import Key, Path, Step, format_path
from axcore.config.provenance import Origin, carry_origins
from axcore.config.values import is_config
from axcore.errors import ConfigError


class Found(NamedTuple):
    """A node of a config tree and its path from the root."""

    path: str
    node: Any


_PLAIN = frozenset({bool, float, int, str, type(None)})
"""Types of most values, which have nothing below them."""


def children(value: Any) -> Sequence[tuple[Step, Any]]:
    """Return the steps and values one level below a config, tuple or mapping."""
    if type(value) in _PLAIN:
        return ()
    if is_config(value):
        return [(name, getattr(value, name)) for name in field_names(value)]
    if isinstance(value, tuple):
        return list(enumerate(value))
    if isinstance(value, Mapping):
        return [(Key(key), item) for key, item in value.items()]
    return ()


def walk(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield every value of the tree with its path, parents before children."""
    pending = [(path, value)]  # not recursive: each value would pass through all levels above it
    while pending:
        path, value = pending.pop()
        yield path, value
        if type(value) not in _PLAIN:
            below = [((*path, step), child) for step, child in children(value)]
            pending += reversed(below)


def rebuild(value: Any, visit: Callable[[Path, Any], Any], path: Path = ()) -> Any:
    """Return the tree with every value passed through `visit`, children before parents.

    What no visit changed stays the very same object.
    """
    if type(value) in _PLAIN:
        return visit(path, value)
    replaced = {}
    for step, child in children(value):
        new = rebuild(child, visit, (*path, step))
        if new is not child:
            replaced[step] = new
    if replaced:
        value = with_children(value, replaced, path)
    return visit(path, value)


def with_children(
    value: Any, replaced: Mapping[Any, Any], path: Path, origin: Origin | None = None
) -> Any:
    """Return `value`, which is at `path`, with the given children replaced.

    Args:
        value: A config, tuple or mapping.
        replaced: The new children by their steps; others stay untouched.
        path: The path of `value` in the whole tree, for errors.
        origin: Where the new children come from; from where `value` does if None.

    Raises:
        ConfigError: A new child does not fit its field.
    """
    if is_config(value):
        try:
            new = attrs.evolve(value, **replaced)
        except ConfigError as error:
            where = (*path, *replaced) if len(replaced) == 1 else path
            raise ConfigError(
                error.what,
                where=format_path(where) or error.where,
                set_in=str(origin) if origin else error.set_in,
                hint=error.hint,
            ) from None
        carry_origins(new, value, dict.fromkeys(replaced, origin) if origin else {})
        return new
    if isinstance(value, tuple):
        return tuple(replaced.get(i, item) for i, item in enumerate(value))
    return immutabledict(sorted({**value, **{str(k): v for k, v in replaced.items()}}.items()))


def find_config(cfg: Any, target: Any) -> tuple[Found, ...]:
    """Return the nodes of a tree that match, with their paths, parents first.

    Args:
        cfg: The root.
        target: A config class, a class that holds one as `Config`, or a predicate on a node.
    """
    accepts = node_predicate(target)
    return tuple(
        Found(format_path(path), node)
        for path, node in walk(cfg)
        if is_config(node) and accepts(node)
    )


def map_config(cfg: Any, fn: Callable[[Any], Any]) -> Any:
    """Return the tree with every config node passed through `fn`, children before parents."""
    return rebuild(cfg, lambda _, node: fn(node) if is_config(node) else node)


def node_predicate(target: Any) -> Callable[[Any], bool]:
    """Return the test that a target means (see `find_config`)."""
    if isinstance(target, type):
        cls = getattr(target, "Config", target)
        return lambda node: isinstance(node, cls)
    if callable(target):
        predicate: Callable[[Any], bool] = target
        return predicate
    raise ConfigError(
        f"a target is a class or a predicate, not {target!r}",
        hint="give the class to look for, such as FeedForward",
    )
