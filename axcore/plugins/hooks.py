"""`HookDecorator`: what marks a plugin's functions, `@hook.kernels` for example.

Each is a plain pluggy marker underneath; what is added is that type checkers see which records a
function must yield, and that functions pluggy would quietly misread are refused. Which hooks there
are, `axcore.plugins.records` lists.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

import pluggy

from axcore.config import suggest_names
from axcore.errors import PluginError
from axcore.registration import Record

PROJECT = "axcore"

R = TypeVar("R", bound=Record)

_mark = pluggy.HookimplMarker(PROJECT)
_spec = pluggy.HookspecMarker(PROJECT)


class UnknownHookError(PluginError, AttributeError):
    """A plugin uses a hook that does not exist."""


class HookDecorator(Generic[R]):
    """Marks a function of no arguments as yielding records of one type."""

    def __init__(self, record: type[R]) -> None:
        self.record = record
        self.__doc__ = record.__doc__

    def __call__(self, fn: Callable[[], Iterable[R]]) -> Callable[[], Iterable[R]]:
        """Return `fn`, marked.

        Raises:
            PluginError: `fn` takes parameters; with defaults, pluggy would ignore them.
        """
        refuse_parameters(fn, self.record.hook)
        return _mark(fn, specname=self.record.hook)


class HookTable:
    """Base of the class that contains one decorator a hook."""

    @classmethod
    def decorators(cls) -> Mapping[str, HookDecorator[Any]]:
        """Return every hook's decorator by its name."""
        return {name: one for name, one in vars(cls).items() if isinstance(one, HookDecorator)}

    @classmethod
    def specs(cls) -> type:
        """Return what pluggy asks for: a class with one marked function a hook."""
        return type("Specs", (), {name: _spec(lambda: ()) for name in cls.decorators()})

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise unknown_hook(name, self.decorators())


def unknown_hook(name: str, known: Iterable[str], where: str | None = None) -> UnknownHookError:
    """Return the error for a hook that does not exist, with the nearest that does."""
    return UnknownHookError(
        f"there is no hook {name!r}; {suggest_names(name, known)}",
        where=where,
        hint="use one of `axcore.plugins.hook`, which docs/plugins/hooks.md lists",
    )


def refuse_parameters(fn: Callable[..., Any], hook_name: str) -> None:
    """Raise PluginError where `fn` has parameters: registration hooks take none."""
    parameters = inspect.signature(fn).parameters
    if parameters:
        raise PluginError(
            f"hook {hook_name} takes no arguments, but {fn.__qualname__} has parameters "
            f"{', '.join(map(repr, parameters))}",
            where=location(fn),
            hint="remove them; pluggy would leave out those with defaults without a word",
        )


def location(fn: Callable[..., Any]) -> str:
    """Return `file:line` of a function."""
    code = getattr(fn, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(fn)
