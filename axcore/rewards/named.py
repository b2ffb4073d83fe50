"""Rewards as texts of the command line: names that plugins bring, and functions of the user."""

import ast
import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from axcore.config import FromText, apply_overrides, suggest_names
from axcore.errors import ConfigError, PluginError
from axcore.plugins import RewardFunction, plugin_host
from axcore.rewards.builtin import PythonReward
from axcore.rewards.reward import Reward

_WHERE = "data.rewards"
_FUNCTION = "def score(prompt, completion, fields): return float(...)"
_HINT = '--set "data.rewards=numeric, regex(pattern=..., weight=0.1), rewards.py:score"'


def rewards_from_text(text: str) -> dict[str, Reward.Config]:
    """Return the rewards that a text names: `exact_match, regex(pattern=..., weight=0.1)`.

    Each goes by its own name, or in a mapping such as `{"format": "regex(pattern=...)"}` by its
    key. Functions of the user are imported, so the text must be the user's.

    Raises:
        ConfigError: The text is not that, names one twice, or a value does not fit.
        PluginError: Nobody brings a reward of a name.
    """
    if text.lstrip().startswith("{"):
        return {key: reward_from_text(one) for key, one in _mapping(text).items()}
    found: dict[str, Reward.Config] = {}
    for part in _parts(text):
        name = _name_and_values(part)[0].rpartition(":")[2]
        if name in found:
            raise ConfigError(
                f"the reward {name!r} is named twice",
                where=_WHERE,
                hint='--set \'data.rewards={"first": "regex(...)", "second": "regex(...)"}\'',
            )
        found[name] = reward_from_text(part)
    return found


def reward_from_text(text: str) -> Reward.Config:
    """Return the reward that a text names: `NAME(field=value, ...)`, or `FILE.py:FUNCTION(...)`.

    Raises:
        ConfigError: A value does not fit, or there is no such function.
        PluginError: Nobody brings a reward of that name.
    """
    name, values = _name_and_values(text)
    made: Any
    if ":" in name:
        made = PythonReward.Config(fn=user_function(name))
    else:
        known = {record.name: record for record in plugin_host().records(RewardFunction)}
        if name not in known:
            raise PluginError(
                f"there is no reward {name!r}; {suggest_names(name, known)}",
                where=_WHERE,
                hint="`axcore plugins -v` lists them; a function of yours is rewards.py:score",
            )
        made = known[name].call("config", returns=Reward.Config)
    try:
        changed: Reward.Config = apply_overrides(made, values)
    except ConfigError as error:
        raise ConfigError(error.what, where=f"reward {name}", hint=error.hint) from None
    return changed


RewardConfigs = Annotated[
    Mapping[str, Annotated[Reward.Config, FromText(reward_from_text)]],
    FromText(rewards_from_text),
]
"""The type of a config's field with rewards by name, which `--set` reads from a text."""


def user_function(
    reference: str, *, where: str = _WHERE, hint: str = _FUNCTION
) -> Callable[..., Any]:
    """Return the function that `FILE.py:NAME` or `MODULE:NAME` names; its module is imported.

    Args:
        reference: The name.
        where: The place in the config, for errors.
        hint: What a function looks like, for errors.

    Raises:
        ConfigError: There is none, or another module goes by the file's name.
    """
    place, _, name = reference.rpartition(":")
    is_file = place.endswith(".py")
    module = _import_file(Path(place), where) if is_file else _import_module(place, where)
    found = getattr(module, name, None)
    if not callable(found):
        raise ConfigError(
            f"{place} has no function {name!r}; {suggest_names(name, _functions(module))}",
            where=where,
            hint=hint,
        )
    function: Callable[..., Any] = found
    return function


def _import_file(path: Path, where: str) -> Any:
    """Import a file by its own name, as a run that is opened later imports its copy."""
    file, name = path.expanduser().resolve(), path.stem
    if not file.is_file():
        raise ConfigError(
            f"there is no file {path}",
            where=where,
            hint="name a file of Python, as FILE.py:FUNCTION",
        )
    present = sys.modules.get(name) or importlib.util.find_spec(name)
    if present is not None:
        origin = getattr(present, "__file__", None) or getattr(present, "origin", None)
        if origin is None or Path(origin).resolve() != file:
            raise ConfigError(
                f"{path} cannot be imported as {name!r}: {origin or 'Python itself'} has that name",
                where=where,
                hint=f"rename the file, to my_{name}.py for example",
            )
    # At the end: a file next to it must not take the place of an installed library.
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    return _import_module(name, where)


def _import_module(name: str, where: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:  # whatever the user's code raises
        raise ConfigError(
            f"{name} cannot be imported: {type(error).__name__}: {error}",
            where=where,
            hint="write FILE.py:FUNCTION, or package.module:FUNCTION of what is installed",
        ) from error


def _functions(module: Any) -> list[str]:
    return [name for name, value in vars(module).items() if callable(value)]


def _mapping(text: str) -> Mapping[str, str]:
    try:
        found = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        found = None
    texts = [*found, *found.values()] if isinstance(found, dict) else [None]
    if not all(isinstance(one, str) for one in texts):
        raise ConfigError(
            f"{text!r:.200} is not a mapping of names to rewards",
            where=_WHERE,
            hint='--set \'data.rewards={"format": "regex(pattern=...)", "right": "numeric"}\'',
        )
    mapping: Mapping[str, str] = found
    return mapping


def _name_and_values(text: str) -> tuple[str, tuple[str, ...]]:
    from axcore.modifiers import parse_change

    with _naming_rewards():
        return parse_change(text)


def _parts(text: str) -> list[str]:
    from axcore.modifiers import split_at_commas

    with _naming_rewards():
        return split_at_commas(text)


@contextlib.contextmanager
def _naming_rewards() -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        what = error.what.replace("is not a change", "is not a reward")
        raise ConfigError(what, where=_WHERE, hint=_HINT) from None
