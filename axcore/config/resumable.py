"""`Resumable`: a field that may change when a run is resumed: `max_steps: Resumable[int] = 100`.

Type checkers read it as the type in the brackets. Any config class may mark fields of its own.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final, TypeVar, get_args

from axcore.config.define import field_annotations
from axcore.config.paths import Path, format_path
from axcore.config.traverse import children
from axcore.config.values import is_config

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
