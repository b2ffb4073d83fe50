"""An environment as a text of the command line: a name that a plugin brings, or a function."""

from typing import Annotated, Any

from axcore.config import FromText, apply_overrides, suggest_names
from axcore.environments.builtin import PythonEnvironment
from axcore.environments.environment import Environment
from axcore.environments.pool import WHERE
from axcore.errors import ConfigError, PluginError
from axcore.plugins import RolloutEnvironment, plugin_host
from axcore.rewards.named import user_function

_FUNCTION = 'def play(prompt, turns, fields): return "more text", or a dict that ends the episode'


def environment_from_text(text: str) -> Environment.Config:
    """Return the environment of a text: `NAME(field=value, ...)`, or `FILE.py:FUNCTION(...)`.

    Raises:
        ConfigError: A value does not fit, or there is no such function.
        PluginError: Nobody brings an environment of that name.
    """
    from axcore.modifiers import parse_change

    try:
        name, values = parse_change(text)
    except ConfigError as error:
        what = error.what.replace("is not a change", "is not an environment")
        raise ConfigError(what, where=WHERE, hint="tools(max_turns=4), or games.py:play") from None
    made = _of_user(name) if ":" in name else _of_plugin(name)
    try:
        changed: Environment.Config = apply_overrides(made, values)
    except ConfigError as error:
        raise ConfigError(error.what, where=f"environment {name}", hint=error.hint) from None
    return changed


def _of_user(name: str) -> Any:
    found: Any = user_function(name, where=WHERE, hint=_FUNCTION)
    if isinstance(found, type) and issubclass(found, Environment):
        return found.Config()
    return PythonEnvironment.Config(fn=found)


def _of_plugin(name: str) -> Any:
    known = {record.name: record for record in plugin_host().records(RolloutEnvironment)}
    if name not in known:
        raise PluginError(
            f"there is no environment {name!r}; {suggest_names(name, known)}",
            where=WHERE,
            hint="`axcore plugins -v` lists them; a function of yours is games.py:play",
        )
    return known[name].call("config", returns=Environment.Config)


EnvironmentConfig = Annotated[Environment.Config | None, FromText(environment_from_text)]
"""The type of a config's field with an environment, which `--set` reads from a text."""
