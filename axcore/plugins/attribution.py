"""Whose class it is that raised or gave back something wrong: of classes that configs name."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from axcore.errors import PluginError
from axcore.plugins.host import plugin_host
from axcore.registration.returns import wrong_return


def plugin_of(cls: type) -> str:
    """Returns the name of the plugin whose package a class is in; empty where it is none's."""
    package = cls.__module__.partition(".")[0]
    owners = [
        plugin.name
        for plugin in plugin_host().plugins()
        if plugin.candidate.module.partition(".")[0] == package
    ]
    return owners[0] if owners else ""


@contextmanager
def attributed(owner: object, method: str) -> Iterator[None]:
    """Lets exceptions of an object's method through, with a note of the plugin of its class."""
    try:
        yield
    except Exception as error:
        plugin = plugin_of(type(owner))
        if plugin:
            cls = type(owner)
            error.add_note(f"in {cls.__module__}:{cls.__qualname__}.{method} of plugin {plugin!r}")
        raise


def wrong_method_return(owner: object, method: str, value: Any, expected: str) -> PluginError:
    """Returns the error for what a method of an object returned, with the plugin of its class."""
    cls, plugin = type(owner), plugin_of(type(owner))
    of_plugin = f" of plugin {plugin!r}" if plugin else ""
    who = f"{cls.__module__}:{cls.__qualname__}.{method}{of_plugin}"
    return wrong_return(who, value, expected, plugin=plugin)
