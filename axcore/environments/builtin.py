"""The environments that axcore brings: functions of the user, and tools that the policy calls."""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from axcore.config import REQUIRED, PositiveInt, config
from axcore.config.json_files import parse_json
from axcore.environments.calculator import calculate
from axcore.environments.environment import (
    Environment,
    Message,
    Reply,
    ToolCall,
    Turn,
    checked_reply,
)
from axcore.errors import ConfigError

NUM_CALLS, NUM_FAILED_CALLS = "num_calls", "num_failed_calls"
"""The fields that rewards read of an episode with tools."""

_TYPES = {int: "integer", float: "number", str: "string", bool: "boolean", list: "array"}
"""What JSON schemas call the types of parameters; those of others are left out."""


class PythonEnvironment(Environment):
    """What a function of yours answers.

    On the command line, `--set data.environment=games.py:play` names one by its file, and
    `my_package.games:play` by its module, as for rewards.
    """

    @config
    class Config(Environment.Config):
        """Describes a `PythonEnvironment`.

        Args:
            fn: `fn(prompt, turns, fields)` returns a text or a list of messages to continue with, a
                dict of fields that ends the episode, or a `Reply`.
            roles: Whose messages it returns.
        """

        fn: Callable[..., Any] = REQUIRED
        roles: tuple[str, ...] = ("user",)

    config: Config

    @property
    def roles(self) -> tuple[str, ...]:
        """Whose messages its replies are."""
        return self.config.roles

    def reply(self, prompt: str, turns: Sequence[Turn], fields: Mapping[str, Any]) -> Reply:
        """Call the function."""
        return checked_reply(self.config.fn(prompt, turns, fields), self.roles)


class ToolCalls(Environment):
    """Runs the functions that the policy calls, and shows it what they return.

    The episode ends with the first turn that calls nothing. A call of a function that is not there,
    with arguments that do not fit, or that raises, is answered with the error: the policy reads it,
    and may try again. `num_calls` and `num_failed_calls` are fields for rewards.

    The prompt is a conversation, and the chat template has to write tools; how calls are written
    is known for the families of Hermes, Qwen and Llama.
    """

    @config
    class Config(Environment.Config):
        """Describes `ToolCalls`.

        Args:
            functions: By name, what may be called. Their parameters have the types that the policy
                reads; the first paragraph of a docstring describes one. None of them offers
                `calculator` alone.
            max_result_chars: Of a result; what is longer is cut, and says so.
        """

        functions: Mapping[str, Callable[..., Any]] = {"calculator": calculate}
        max_result_chars: PositiveInt = 2000

    config: Config

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        if not cfg.functions:
            raise ConfigError(
                "there is no function to call",
                where="data.environment.functions",
                hint='ToolCalls.Config(functions={"search": search})',
            )

    @property
    def roles(self) -> tuple[str, ...]:
        """Results are messages of `tool`."""
        return ("tool",)

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        """A schema of each function."""
        return tuple(tool_schema(name, fn) for name, fn in self.config.functions.items())

    def start(self, prompt: str, fields: Mapping[str, Any]) -> Sequence[Message]:
        """Return the conversation; a text is a question of the user."""
        messages: Sequence[Message] | None = fields.get("messages")
        return messages or [{"role": "user", "content": prompt}]

    def reply(self, prompt: str, turns: Sequence[Turn], fields: Mapping[str, Any]) -> Reply:
        """Run the calls of the last turn."""
        results = [self._result(call) for call in turns[-1].calls]
        messages = tuple(
            {"role": "tool", "name": call.name, "tool_call_id": call.id, "content": text}
            for call, (text, _) in zip(turns[-1].calls, results, strict=True)
        )
        num_failed = sum(not is_fine for _, is_fine in results)
        counted = {NUM_CALLS: len(results), NUM_FAILED_CALLS: num_failed}
        return Reply(
            messages=messages,
            fields={name: fields.get(name, 0) + number for name, number in counted.items()},
        )

    def _result(self, call: ToolCall) -> tuple[str, bool]:
        """Return what a call returns, as text, and whether it did."""
        functions = self.config.functions
        if call.name not in functions:
            return (
                f"Error: there is no function {call.name!r:.80}; call {_listed(functions)}",
                False,
            )
        try:
            arguments = parse_json(call.arguments or "{}")
            if not isinstance(arguments, dict):
                raise TypeError("arguments are not a JSON object")
            value = functions[call.name](**arguments)
        # What a policy writes is its own affair: it reads the error, as it reads a result.
        except Exception as error:
            return f"Error: {type(error).__name__}: {error}"[: self.config.max_result_chars], False
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        most = self.config.max_result_chars
        return (text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"), True


def _listed(functions: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, functions))


def tool_schema(name: str, fn: Callable[..., Any]) -> dict[str, Any]:
    """Return the JSON schema of a function, of its annotations and its docstring.

    Raises:
        ConfigError: Its parameters are not known, or cannot be given by name.
    """
    properties, required = {}, []
    for parameter in _parameters(name, fn):
        kind = _TYPES.get(parameter.annotation)
        properties[parameter.name] = {"type": kind} if kind else {}
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    described = " ".join((inspect.getdoc(fn) or name).split("\n\n")[0].split())
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": described,
            "parameters": {"type": "object", "properties": properties, "required": required},
        },
    }


def _parameters(name: str, fn: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        found = [*inspect.signature(fn, eval_str=True).parameters.values()]
    # A built-in has none, and a text as annotation may name what is not there.
    except (TypeError, ValueError, NameError) as error:
        raise _not_callable(name, str(error)) from error
    unnamed = [one for one in found if one.kind in _UNNAMED]
    if unnamed:
        raise _not_callable(name, f"its parameter {unnamed[0]} has no name of its own")
    return found


_UNNAMED = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
)


def _not_callable(name: str, why: str) -> ConfigError:
    return ConfigError(
        f"the function {name!r} cannot be called by name: {why}",
        where="data.environment.functions",
        hint="def search(query: str, limit: int = 3) -> str: ...",
    )
