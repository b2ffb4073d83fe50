"""Editing configs: `evolve`, `update_config` and `replace_config`. The input never changes."""

from collections.abc import Mapping
from typing import Any, TypeVar

import attrs

from axcore.config.define import (
    Origin,
    calling_origin,
    carry_origins,
    class_tag,
    field_names,
    moved_field,
    origins_of,
)
from axcore.config.paths import (
    Key,
    Path,
    Pattern,
    Step,
    children,
    find_config,
    format_path,
    matches,
    matches_below,
    node_predicate,
    parse_pattern,
    rebuild,
    walk,
    with_children,
)
from axcore.config.render import is_at_default
from axcore.config.suggest import suggest_names
from axcore.config.values import REQUIRED, is_config, is_config_class
from axcore.errors import ConfigError

C = TypeVar("C")


def evolve(cfg: C, /, **changes: Any) -> C:
    """Return `cfg` with some of its own fields changed.

    Under `axcore.config.mypy_plugin` mypy checks the names and types of `changes`.

    Raises:
        ConfigError: A field does not exist or a value does not fit.
    """
    new: C = attrs.evolve(cfg, **changes)  # type: ignore[misc]
    carry_origins(new, cfg, dict.fromkeys(changes, calling_origin()))
    return new


def update_config(cfg: C, changes: Mapping[str, Any], *, set_in: str | None = None) -> C:
    """Return `cfg` with values set by path or glob.

    Args:
        cfg: The root.
        changes: `{"model.decoder.num_layers": 12, "**.dropout.rate": 0.1}`, applied in order.
        set_in: Where the values come from, for provenance; the calling function by default.

    Raises:
        ConfigError: Listing every path or glob that matches nothing and every value that does
            not fit.
    """
    origin = Origin(set_in) if set_in else calling_origin()
    problems: list[ConfigError] = []
    result: Any = cfg
    for text, value in changes.items():
        try:
            result = _set_matching(result, parse_pattern(text), value, origin)
        except ConfigError as error:
            problems.append(error)
    if problems:
        raise _gathered(problems, set_in)
    new: C = result
    return new


def matching_paths(cfg: Any, pattern: Pattern) -> tuple[Path, ...]:
    """Return the paths below the root that a glob matches; a plain path matches itself.

    Raises:
        ConfigError: There is none.
    """
    if not pattern:
        raise ConfigError("the path is empty", hint="name a field, or edit with evolve(cfg, ...)")
    if not pattern.is_glob:
        _resolve(cfg, pattern)
        return (tuple(pattern),)
    paths = tuple(path for path, _ in walk(cfg) if path and matches_below(pattern, path))
    if not paths:
        raise _matches_nothing(cfg, pattern)
    return paths


def origin_of(cfg: Any, path: str) -> Origin | None:
    """Return where the value at a path was set, or None where it is a default.

    A value inside of a tuple or mapping was set where all of it was.

    Raises:
        ConfigError: The path matches nothing.
    """
    pattern = parse_pattern(path)
    if pattern.is_glob:
        raise ConfigError(f"{path!r} is a glob", hint="name one value")
    node, origin = cfg, None
    for step in matching_paths(cfg, pattern)[0]:
        if is_config(node):
            origin = origins_of(node).get(str(step))
        node = dict(children(node)).get(step)
    return origin


def _set_matching(cfg: Any, pattern: Pattern, value: Any, origin: Origin) -> Any:
    return set_at_each(cfg, dict.fromkeys(matching_paths(cfg, pattern), value), origin)


def set_at_each(node: Any, values: Mapping[Path, Any], origin: Origin, above: Path = ()) -> Any:
    """Return `node` with a value set at each of the paths below it; the outermost wins."""
    groups: dict[Step, dict[Path, Any]] = {}
    for path, value in values.items():
        groups.setdefault(path[0], {})[path[1:]] = value
    below = dict(children(node))
    replaced = {
        step: inner[()] if () in inner else set_at_each(below[step], inner, origin, (*above, step))
        for step, inner in groups.items()
    }
    return with_children(node, replaced, above, origin)


def _resolve(cfg: Any, path: Pattern) -> None:
    """Check that a plain path exists; a new key of a mapping may come last."""
    node = cfg
    for i, step in enumerate(path):
        below = dict(children(node))
        known = _keys_of_kind(below, step)
        is_new_key = isinstance(step, Key) and isinstance(node, Mapping) and i + 1 == len(path)
        if step not in known and not is_new_key:
            raise _no_such_step(path, i, node, below)
        node = below.get(step)


def _keys_of_kind(below: Mapping[Step, Any], step: Step) -> set[Step]:
    return {key for key in below if isinstance(key, Key) == isinstance(step, Key)}


def _no_such_step(path: Pattern, i: int, node: Any, below: Mapping[Step, Any]) -> ConfigError:
    at = format_path(path[:i]) or "the root"
    kind = type(node).__qualname__
    name = format_path(path[i : i + 1])
    if below:
        moved = moved_field(type(node), name)
        hint = (
            f"it is now {moved}"
            if moved
            else suggest_names(name, [format_path((key,)) for key in below])
        )
    else:
        hint = f"{at} contains nothing below it; stop the path there"
    return ConfigError(
        f"{format_path(path)!r} matches nothing: {at} ({kind}) has no {name!r}",
        where=at,
        hint=hint,
    )


def _matches_nothing(cfg: Any, pattern: Pattern) -> ConfigError:
    known = sorted({format_path(path) for path, _ in walk(cfg) if path})
    plain = [format_path((step,)) for step in pattern if step not in ("*", "**", "[*]")]
    names = {format_path(path[-1:]) for path, _ in walk(cfg) if path}
    unknown = [name for name in plain if name not in names]
    return ConfigError(
        f"{format_path(pattern)!r} matches nothing in {type(cfg).__qualname__}",
        hint=suggest_names(unknown[0], names)
        if unknown
        else suggest_names(plain[-1], known)
        if plain
        else None,
    )


def _gathered(problems: list[ConfigError], set_in: str | None) -> ConfigError:
    if len(problems) == 1:
        first = problems[0]
        return ConfigError(
            first.what, where=first.where, set_in=first.set_in or set_in, hint=first.hint
        )
    return ConfigError(
        f"{len(problems)} changes do not fit:\n" + "\n".join(str(problem) for problem in problems),
        set_in=set_in,
    )


def replace_config(
    cfg: C,
    target: Any,
    new: Any,
    *,
    at: str = "**",
    missing_ok: bool = False,
) -> C:
    """Return `cfg` with every matching node replaced; ancestors do not know.

    Nodes are visited children first, so a function `new` receives a node whose own matching
    descendants are replaced already.

    Args:
        cfg: The root.
        target: A module class or its Config (instances of subclasses match), or a predicate.
        new: A config, or a function `old -> new`. Its REQUIRED fields are filled from same-named
            fields of the node it replaces; whatever it sets stays set.
        at: Glob that the path of the node must match.
        missing_ok: Allows that nothing matches.

    Raises:
        ConfigError: Nothing matches; the message lists what could.
    """
    pattern = parse_pattern(at)
    accepts = node_predicate(target)
    origin = calling_origin()
    count = 0

    def visit(path: Path, node: Any) -> Any:
        nonlocal count
        if not (is_config(node) and accepts(node) and matches(pattern, path)):
            return node
        count += 1
        return _filled_from(_replacement(new, node, path), node, path, origin)

    result: C = rebuild(cfg, visit)
    if not count and not missing_ok:
        raise _nothing_to_replace(cfg, target, at)
    return result


def same_fields(old: Any, target: Any, **changes: Any) -> Any:
    """Return the config of another class with the fields of this one.

    For a class that does what another does and a little more: a config alone, given to
    `replace_config`, takes what is REQUIRED from the node that it replaces, and nothing else.

        replace_config(cfg, Attention, lambda old: same_fields(old, MyAttention, window=64))

    Args:
        old: A config.
        target: A module class, or its Config.
        changes: Values of fields that shall have others.

    Raises:
        ConfigError: The class lacks a field that `old` sets, or a value does not fit.
    """
    cls = getattr(target, "Config", target)
    if not is_config_class(cls):
        raise ConfigError(f"expected a module class or a config class, got {target!r}")
    names = set(field_names(cls))
    lost = [name for name in field_names(old) if name not in names and not is_at_default(old, name)]
    if lost:
        shown = ", ".join(f"{name}={getattr(old, name)!r}" for name in lost)
        raise ConfigError(
            f"{class_tag(cls)} has no place for what {class_tag(type(old))} sets: {shown}",
            hint=f"derive it from {class_tag(type(old))}, or set these to their defaults first",
        )
    kept = {name: getattr(old, name) for name in field_names(old) if name in names}
    new = cls(**{**kept, **changes})
    carry_origins(new, old, dict.fromkeys(changes, calling_origin()))
    return new


def _replacement(new: Any, old: Any, path: Path) -> Any:
    is_function = callable(new) and not isinstance(new, type) and not is_config(new)
    made = new(old) if is_function else new
    if not is_config(made):
        is_owner = is_config_class(getattr(made, "Config", None))
        name = getattr(made, "__qualname__", "")
        raise ConfigError(
            f"a replacement must be a config, got {made!r}",
            where=format_path(path) or "the root",
            hint=f"give an instance: {name}.Config(...)"
            if is_owner
            else "return a config from the function that replaces",
        )
    return made


def _filled_from(new: Any, old: Any, path: Path, origin: Origin) -> Any:
    if new is old:
        return new
    theirs = set(field_names(old))
    fills = {
        name: getattr(old, name)
        for name in field_names(new)
        if getattr(new, name) is REQUIRED and name in theirs and getattr(old, name) is not REQUIRED
    }
    if not fills:
        return new
    return with_children(new, fills, path, origin)


def _nothing_to_replace(cfg: Any, target: Any, at: str) -> ConfigError:
    name = getattr(target, "__qualname__", repr(target))
    nodes = find_config(cfg, lambda _: True)
    if isinstance(target, type) and at != "**":
        elsewhere = [found.path for found in find_config(cfg, target)]
        if elsewhere:
            return ConfigError(
                f"no {name} at {at!r} in {type(cfg).__qualname__}",
                hint="there is one at " + ", ".join(elsewhere[:8]),
            )
    kinds = sorted({class_tag(type(found.node)).split(":")[1] for found in nodes})
    return ConfigError(
        f"no {name} in {type(cfg).__qualname__}; it contains {', '.join(kinds)}",
        hint=suggest_names(name, kinds) + " (missing_ok=True where none is fine)",
    )
