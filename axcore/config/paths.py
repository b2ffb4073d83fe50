"""Paths into config trees, and walks over them."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_args

import attrs
from immutabledict import immutabledict

from axcore.config.define import Origin, carry_origins, field_annotations, field_names
from axcore.config.values import is_config
from axcore.errors import ConfigError


class Key(str):
    """A step into a mapping."""

    __slots__ = ()


Step = str | int
Path = tuple[Step, ...]

ANY: Final = "*"
ANY_ITEM: Final = "[*]"
ANY_DEPTH: Final = "**"

_TOKEN = re.compile(
    r"""(?P<deep>\*\*)|(?P<any>\*)|(?P<name>[A-Za-z_]\w*)"""
    r"""|\[(?P<index>\d+)\]|(?P<item>\[\*\])|\[(?P<quoted>"(?:[^"\\]|\\.)*"|'[^']*')\]|(?P<dot>\.)"""
)


class Pattern(tuple[Step, ...]):
    """A parsed glob. Wildcards are kept as the constants `ANY`, `ANY_ITEM` and `ANY_DEPTH`."""

    __slots__ = ()

    @property
    def is_glob(self) -> bool:
        """Whether the pattern contains a wildcard."""
        return any(type(step) is _Wildcard for step in self)


class _Wildcard(str):
    __slots__ = ()


def parse_pattern(text: str) -> Pattern:
    """Parse a path or glob.

    Raises:
        ConfigError: The text is not a path.
    """
    steps: list[Step] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _not_a_path(text, at)
        at = match.end()
        kind = match.lastgroup
        if kind == "dot":
            if not steps or at == len(text) or text[at] in ".[":
                raise _not_a_path(text, at - 1)
            continue
        steps.append(_step(kind, match))
        if kind in ("name", "any", "deep") and at < len(text) and text[at] not in ".[":
            raise _not_a_path(text, at)
    return Pattern(steps)


def _step(kind: str | None, match: re.Match[str]) -> Step:
    if kind == "deep":
        return _Wildcard(ANY_DEPTH)
    if kind == "any":
        return _Wildcard(ANY)
    if kind == "item":
        return _Wildcard(ANY_ITEM)
    if kind == "index":
        return int(match["index"])
    if kind == "quoted":
        return _key(match["quoted"], match.string)
    return match["name"]


def _key(quoted: str, text: str) -> Key:
    if quoted[0] == "'":
        return Key(quoted[1:-1])
    try:
        return Key(json.loads(quoted, strict=False))
    except ValueError:
        raise _not_a_path(text, text.index(quoted)) from None


def _not_a_path(text: str, at: int) -> ConfigError:
    return ConfigError(
        f"{text!r} is not a path: cannot read {text[at:]!r}",
        hint='write paths as model.layers[0].rules["key"]; * is one step, ** any number',
    )


def format_path(path: Sequence[Step]) -> str:
    """Return a path as text; the root is the empty string."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif isinstance(step, Key):
            text += f"[{json.dumps(step, ensure_ascii=False)}]"
        elif step == ANY_ITEM:
            text += step
        else:
            text += f".{step}" if text else step
    return text


def matches(pattern: Sequence[Step], path: Sequence[Step]) -> bool:
    """Whether a glob matches a full path."""
    if not pattern:
        return not path
    head, rest = pattern[0], pattern[1:]
    if type(head) is _Wildcard and head == ANY_DEPTH:
        return any(matches(rest, path[i:]) for i in range(len(path) + 1))
    return bool(path) and _step_matches(head, path[0]) and matches(rest, path[1:])


def matches_below(pattern: Sequence[Step], path: Sequence[Step]) -> bool:
    """Whether a glob matches a full path, neither of them empty; quick to say no."""
    return _step_matches(pattern[-1], path[-1], any_depth=True) and matches(pattern, path)


def _step_matches(pattern: Step, step: Step, any_depth: bool = False) -> bool:
    is_item = isinstance(step, (int, Key))
    if type(pattern) is _Wildcard:
        return (any_depth and pattern == ANY_DEPTH) or is_item == (pattern == ANY_ITEM)
    return pattern == step and isinstance(pattern, (int, Key)) == is_item


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
        path: The path of `value` in the full tree, for errors.
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
        target: A config class, a class that contains one as `Config`, or a predicate on a node.
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


T = TypeVar("T")

_MARK: Final = "may change when a run is resumed"

Resumable = Annotated[T, _MARK]


def resumable_paths(cfg: Any) -> tuple[str, ...]:
    """Return the paths of a config's resumable fields; all that is below them may change, too."""
    return tuple(map(format_path, _paths(cfg, ())))


def describe_resumable(paths: Iterable[str]) -> str:
    """Return paths for people: those of the root by name, then others as `**.name`, once each."""
    shown = {path if "." not in path else f"**.{path.rpartition('.')[2]}": None for path in paths}
    return ", ".join(sorted(shown, key=lambda name: name.startswith("**")))


def _paths(value: Any, path: Path) -> Iterator[Path]:
    marked = _marked_fields(type(value)) if is_config(value) else frozenset()
    for step, child in children(value):
        if step in marked:
            yield (*path, step)
        else:
            yield from _paths(child, (*path, step))


def _marked_fields(cls: type) -> frozenset[str]:
    hints = field_annotations(cls)
    return frozenset(name for name in hints if _MARK in get_args(hints[name])[1:])
