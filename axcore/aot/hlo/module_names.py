"""From the scopes that a compiled program names to the modules that opened them.

A scope is the last step of a module's path, and scopes nest as calls do: attention that a residual
connection calls is in `attention_residual/attention`, though both are parts of a layer. What a
gradient is made of is in the scopes of the forward pass.
"""

import re
from collections.abc import Iterable

from axcore.module import Module
from axcore.module.rng import format_path
from axcore.module.tree import index_of

OUTSIDE_MODULES = "(outside of modules)"
LEARNER = "learner"
"""The scope of the update of parameters."""

_WRAPPED = re.compile(r"^\w+\((.*)\)$")
_MERGED = re.compile(r"\(([^():]*):[^()]*\)")

Path = tuple[str, ...]


def module_paths(model: Module) -> frozenset[Path]:
    """Returns the paths of all modules of a tree as the scopes that they open."""
    return frozenset(_scopes(place.path) for place in index_of(model).values())


def _scopes(path: Iterable[str | int]) -> Path:
    steps: list[str] = []
    for step in path:
        if isinstance(step, int):
            steps[-1] = f"{steps[-1]}_{step}"
        else:
            steps.append(step)
    return tuple(steps)


class ModuleNames:
    """Names the module that an operation belongs to."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = frozenset(paths)
        self._found: dict[str, str] = {}

    def __call__(self, op_name: str) -> str:
        """Returns the path of the innermost module that an operation's scopes lead to."""
        if op_name not in self._found:
            self._found[op_name] = self._resolved(op_name)
        return self._found[op_name]

    def _resolved(self, op_name: str) -> str:
        here: Path = ()
        is_inside = False
        for scope in map(_unwrapped, _MERGED.sub(r"\1", op_name).split("/")):
            if scope == LEARNER and not is_inside:
                return LEARNER
            is_inside = is_inside or scope == "model"
            deeper = self._below(here, scope)
            if deeper is not None:
                here, is_inside = deeper, True
        if here:
            return format_path(here)
        return "model" if is_inside else OUTSIDE_MODULES

    def _below(self, here: Path, scope: str) -> Path | None:
        """Returns the nearest module of that scope, a part of where we are or of what is around."""
        for length in range(len(here), -1, -1):
            if (*here[:length], scope) in self._paths:
                return (*here[:length], scope)
        return None


def _unwrapped(scope: str) -> str:
    """Returns a scope without the transformations around it: `transpose(jvp(head))` is `head`."""
    found = _WRAPPED.match(scope)
    return _unwrapped(found[1]) if found else scope


def is_backward(op_name: str) -> bool:
    """Returns whether an operation is of the backward pass, recomputation not counted."""
    return "transpose(" in op_name and "rematted_computation" not in op_name
