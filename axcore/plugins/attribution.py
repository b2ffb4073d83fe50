"""Whose class it is that raised or gave back something wrong: of classes that configs name."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from axcore.errors import PluginError
from axcore.plugins.host import plugin_host
from axcore.registration.returns import CORE, note_owner, wrong_return


def plugin_of(cls: type) -> str:
    """Return the name of the plugin whose package a class is in; empty where it is none's."""
    package = cls.__module__.partition(".")[0]
    owners = [
        plugin.name
        for plugin in plugin_host().plugins()
        if plugin.candidate.module.partition(".")[0] == package
    ]
    return owners[0] if owners else ""


@contextmanager
def attributed(owner: object, method: str) -> Iterator[None]:
    """Let exceptions of an object's method through, with a note of the plugin of its class.

    Raises:
        PluginError: The method wants to end the process.
    """
    try:
        yield
    except Exception as error:
        note_owner(error, _named(owner, method), plugin_of(type(owner)))
        raise
    except SystemExit as error:  # would end axcore without a word
        raise wrong_method_return(owner, method, error, "a value", verb="raised") from error


def wrong_method_return(
    owner: object, method: str, value: Any, expected: str, *, verb: str = "returned"
) -> PluginError:
    """Return the error for what a method of an object returned, with the plugin of its class."""
    plugin = plugin_of(type(owner))
    return wrong_return(_named(owner, method), value, expected, plugin=plugin, verb=verb)


def of_plugin(owner: object) -> str:
    """Return " of plugin 'NAME'" for an object whose class a plugin brings, else nothing."""
    plugin = plugin_of(type(owner))
    return "" if plugin in ("", CORE) else f" of plugin {plugin!r}"


def _named(owner: object, method: str) -> str:
    cls = type(owner)
    return f"{cls.__module__}:{cls.__qualname__}.{method}{of_plugin(owner)}"
