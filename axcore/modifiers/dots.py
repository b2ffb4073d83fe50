"""`with_dot`: a config with another kind of matrix product in its linear layers."""

from typing import Any

from axcore.config import find_config, suggest_names, update_config
from axcore.config.paths import matches, parse_pattern
from axcore.errors import ConfigError
from axcore.layers import Dot, PlainDot

WIDE = ("**.embedding.**", "**.head.**", "**.router.**")
"""What stays wide by default: rounding there shows in every token, for little time saved."""


def with_dot(cfg: Any, dot: Dot.Config, *, exclude: tuple[str, ...] = WIDE) -> Any:
    """Returns `cfg` with `dot` in the place of every `PlainDot`, but for those excluded.

    A layer whose `dot` is something else already keeps it.

    Raises:
        ConfigError: There is none to replace, or a glob is none.
    """
    dots = find_config(cfg, Dot)
    plain = [found.path for found in dots if isinstance(found.node, PlainDot.Config)]
    excluded = {path for glob in exclude for path in _excluded(glob, plain)}
    paths = [path for path in plain if path not in excluded]
    if not paths or isinstance(dot, PlainDot.Config):
        raise ConfigError(
            f"{type(dot).__qualname__} takes the place of nothing: of {len(dots)} products, "
            f"{len(dots) - len(plain)} are not plain and {len(excluded)} are excluded",
            hint="apply it once, to a config that holds linear layers, and exclude fewer of them",
        )
    return update_config(cfg, dict.fromkeys(paths, dot))


def _excluded(glob: str, paths: list[str]) -> list[str]:
    found = [path for path in paths if matches(parse_pattern(glob), parse_pattern(path))]
    if not found and glob not in WIDE:
        raise ConfigError(
            f"exclude names {glob!r}, which matches no product", hint=suggest_names(glob, paths)
        )
    return found
