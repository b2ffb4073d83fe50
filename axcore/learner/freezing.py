"""Which parameters are trained: a rule by path, for the rest there is no optimizer state at all."""

from collections.abc import Sequence
from typing import Any

import attrs
import jax

from axcore.config import name_the_known
from axcore.config.paths import matches, parse_pattern
from axcore.errors import ConfigError
from axcore.module import ParamSpec


def with_frozen(specs: Any, trained: Sequence[str]) -> Any:
    """Returns a tree of specs in which what no glob matches is marked as frozen.

    Args:
        specs: What `module.param_specs()` returns.
        trained: Globs of paths in the state, `**.attention.**`.

    Raises:
        ConfigError: A glob matches no parameter.
    """
    names = {
        spec.state_path: spec.name
        for spec in jax.tree.leaves(specs, is_leaf=_is_spec)
        if spec.is_trainable
    }
    kept = set()
    for glob in trained:
        found = {path for path in names if matches(parse_pattern(glob), path)}
        if not found:
            raise ConfigError(
                f"{glob!r} matches no parameter of the model",
                where="learner.trained",
                mend=name_the_known(glob, list(names.values())),
            )
        kept |= found

    def marked(spec: ParamSpec) -> ParamSpec:
        is_frozen = not spec.is_statistic and spec.state_path not in kept
        return attrs.evolve(spec, is_frozen=True) if is_frozen else spec

    return jax.tree.map(marked, specs, is_leaf=_is_spec)


def _is_spec(leaf: Any) -> bool:
    return isinstance(leaf, ParamSpec)
