"""Whether a feature's implementation knows kinds of models: what runs in it for some of them only,
and what becomes of it in kinds that nobody could have named.

A branch for each kind of model is glue wherever it is, also in the implementation, whose lines are
not counted otherwise. Such glue are lines that run for one kind and not for others, and lines that
ask for a kind by its class or by that class's name, in tables for example. What is asked for in
another way fails on kinds whose classes are made up here.
"""

import ast
import functools
import importlib
import inspect
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from axcore.complexity.family import model_family
from axcore.complexity.lines import code_lines
from axcore.config import REQUIRED, config, replace_config, walk
from axcore.layers import Residual, TransformerLayer
from axcore.module import Module

NUM_KINDS = 4
"""Kinds of models of the family that are compared, and kinds that are made up."""

Line = tuple[str, int]
"""A file and the number of a line in it."""


def known_kinds() -> Iterator[tuple[str, Any]]:
    """Yield four models of the family, which have all parts of all models and variants of it."""
    every = list(model_family(NUM_KINDS, NUM_KINDS))
    yield from every[:: NUM_KINDS + 1]


def unseen_kinds() -> Iterator[tuple[str, Any]]:
    """Yield models whose layer and residual connection are of classes that are made here.

    They have the slots of a `TransformerLayer`, and inherit from none that a feature could know.
    """
    for (name, cfg), number in zip(known_kinds(), itertools.count(), strict=False):
        layer, residual = _layer_class(number), _residual_class(number)
        changed = replace_config(cfg, TransformerLayer, lambda old, to=layer: _as(to, old))
        changed = replace_config(changed, Residual, lambda old, to=residual: _as(to, old))
        yield f"unseen {number} {name}", changed


def _as(cls: Any, old: Any) -> Any:
    """Return the config of a class with the fields of another."""
    names = [name for name in cls.Config.__annotations__ if hasattr(old, name)]
    return cls.Config(**{name: getattr(old, name) for name in names})


def _layer_class(number: int) -> type[Module]:
    def setup(self: Any, cfg: Any) -> None:
        self.attention = cfg.attention.build(dim=cfg.dim)
        self.feed_forward = cfg.feed_forward.build(dim=cfg.dim)
        self.first, self.second = (cfg.residual.build(dim=cfg.dim) for _ in range(2))

    def forward(self: Any, x: Any, info: Any) -> Any:
        x = self.first(x, lambda normed: self.attention(normed, info))
        return self.second(x, self.feed_forward)

    fields = dict.fromkeys(("dim", "attention", "feed_forward", "residual"), REQUIRED)
    return _module_class(f"Layer{number}", fields, setup=setup, forward=forward)


def _residual_class(number: int) -> type[Module]:
    def setup(self: Any, cfg: Any) -> None:
        self.norm, self.dropout = cfg.norm.build(dim=cfg.dim), cfg.dropout.build()

    def forward(self: Any, x: Any, branch: Any) -> Any:
        return x + self.dropout(branch(self.norm(x)))

    fields = dict.fromkeys(("dim", "norm", "dropout"), REQUIRED)
    return _module_class(f"Residual{number}", fields, setup=setup, forward=forward)


def _module_class(name: str, fields: dict[str, Any], **methods: Any) -> type[Module]:
    name = f"Unseen{name}"
    annotations = {field: int if field == "dim" else Module.Config for field in fields}
    body = {"__annotations__": annotations, "__module__": __name__, "__doc__": "Describes it."}
    described = type("Config", (Module.Config,), {**fields, **body})
    described.__qualname__ = f"{name}.Config"
    return type(name, (Module,), {"__module__": __name__, "Config": config(described), **methods})


def glue_lines(
    apply: Callable[[Any], Any], implementation: Iterable[str], runs: Iterable[Callable[[], Any]]
) -> int:
    """Return how many lines of an implementation are there for some kinds of models only.

    They run for a later kind and not for the first, or name one.

    Args:
        apply: The function whose lines are counted already.
        implementation: The feature's own modules, or names in them as `module:Name`. What runs in
            the one that `apply` is in counts, too; what that one says about other features does
            not.
        runs: What adds the feature to a model of each kind, and traces it. One that raises counts
            as far as it came.
    """
    own, not_own = _own_files(implementation)
    files = {*own, inspect.getfile(apply)}
    counted = _lines_of(apply) | not_own
    first: set[Line] | None = None
    later: set[Line] = set()
    for run in runs:
        with recorded_lines(files) as lines:
            run()
        if first is None:
            first = lines
        else:
            later |= lines - first
    return len(((later & _code(files)) | _lines_that_ask(own)) - counted)


def _own_files(implementation: Iterable[str]) -> tuple[set[str], set[Line]]:
    """Return the files that an implementation is in, and the lines there that are not its own."""
    names: dict[str, set[str]] = {}
    for one in implementation:
        module, _, name = one.partition(":")
        names.setdefault(inspect.getfile(importlib.import_module(module)), set()).add(name)
    not_own: set[Line] = set()
    for file, own in names.items():
        if "" in own:  # all of it
            continue
        for node in ast.parse(Path(file).read_text(encoding="utf-8")).body:
            if getattr(node, "name", None) not in own:
                not_own |= {(file, line) for line in range(node.lineno, (node.end_lineno or 0) + 1)}
    return set(names), not_own


def _lines_that_ask(files: Iterable[str]) -> set[Line]:
    """Return the lines that ask whether something is of a class that some kinds have."""
    found: set[Line] = set()
    for file in files:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
        own = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        names = _names_of_kinds() - own
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and node.value in names:
                found.add((file, node.lineno))
            found |= {
                (file, name.lineno)
                for asked in _asked_for(node)
                for name in ast.walk(asked)
                if isinstance(name, (ast.Name, ast.Attribute)) and _last_word(name) in names
            }
    return found


def _last_word(name: ast.Name | ast.Attribute) -> str:
    return name.id if isinstance(name, ast.Name) else name.attr


def _asked_for(node: ast.AST) -> list[ast.expr]:
    """Return the expressions of a node that something is compared with."""
    match node:
        case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, kinds]):
            return [kinds]
        case ast.MatchClass(cls=kind):
            return [kind]
        case ast.Compare(comparators=kinds):
            return list(kinds)
        case ast.Dict(keys=keys):
            return [key for key in keys if key is not None]
    return []


@functools.cache
def _names_of_kinds() -> frozenset[str]:
    """Return the names of classes that some known kinds of models have, and others have not."""
    found = [
        {type(node).__qualname__.removesuffix(".Config") for _, node in walk(cfg.model)}
        for _, cfg in known_kinds()
    ]
    common = found[0].intersection(*found)
    return frozenset(found[0].union(*found) - common)


@contextmanager
def recorded_lines(files: Iterable[str]) -> Iterator[set[Line]]:
    """Record the lines of some files that run in this thread, until the block ends."""
    wanted, lines = frozenset(files), set[Line]()

    def trace_line(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            lines.add((frame.f_code.co_filename, frame.f_lineno))
        return trace_line

    def trace_call(frame: FrameType, event: str, arg: Any) -> Any:
        return trace_line if frame.f_code.co_filename in wanted else None

    before = sys.gettrace()
    sys.settrace(trace_call)
    try:
        yield lines
    finally:
        sys.settrace(before)


def _lines_of(fn: Callable[..., Any]) -> set[Line]:
    source, start = inspect.getsourcelines(fn)
    return {(inspect.getfile(fn), start + offset) for offset in range(len(source))}


def _code(files: Iterable[str]) -> set[Line]:
    """Return the lines of code of files: not those of docstrings."""
    found: set[Line] = set()
    for file in files:
        lines = code_lines(Path(file).read_text(encoding="utf-8"))
        found |= {(file, number) for number in lines}
    return found
