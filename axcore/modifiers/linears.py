"""`replaced_linears`: a config with something in the place of its plain linear layers."""

from collections.abc import Callable, Iterator
from typing import Any

from axcore.config import find_config, update_config
from axcore.config.paths import matches, parse_pattern
from axcore.layers import Linear, PlainDot
from axcore.module import Module


def replaced_linears(
    cfg: Any, new: Callable[[Any], Any], *, exclude: tuple[str, ...]
) -> tuple[Any, int]:
    """Returns `cfg` with `new(linear)` in the place of each plain `Linear`, and how many there are.

    Those stay that a layer needs as they are, which its config names in `plain_parts`.

    Args:
        cfg: Any config.
        new: From the config of a layer to another that takes its place.
        exclude: Globs of the paths of layers that stay as they are.
    """
    globs = [parse_pattern(glob) for glob in (*exclude, *_needed_as_they_are(cfg))]
    changes = {
        found.path: new(found.node)
        for found in find_config(cfg, Linear)
        if type(found.node) is Linear.Config and isinstance(found.node.dot, PlainDot.Config)
        if not any(matches(glob, parse_pattern(found.path)) for glob in globs)
    }
    return (update_config(cfg, changes) if changes else cfg), len(changes)


def _needed_as_they_are(cfg: Any) -> Iterator[str]:
    for found in find_config(cfg, Module):
        for part in found.node.plain_parts:
            yield f"{found.path}.{part}".removeprefix(".")
