"""What lies beside a `tokenizer.json`: the names of its tokens, and its chat template."""

from collections.abc import Mapping
from typing import Any

import attrs

from axcore.config.json_files import read_json
from axcore.errors import DataError


@attrs.frozen
class TokenizerSettings:
    """What a `tokenizer_config.json` says.

    Args:
        tokens: Special tokens by role, as `eos_token` and `pad_token`.
        added: Tokens by number that the vocabulary has besides those of the `tokenizer.json`, each
            with its settings.
        chat_template: The template, if there is one.
        tool_template: That of conversations with tools, if it is another one.
    """

    tokens: Mapping[str, str] = {}
    added: Mapping[int, Mapping[str, Any]] = {}
    chat_template: str | None = None
    tool_template: str | None = None


def read_settings(path: str | None, special_tokens: str | None = None) -> TokenizerSettings:
    """Returns the settings of a file, none without one.

    Args:
        path: A `tokenizer_config.json`.
        special_tokens: A `special_tokens_map.json`, for tokens that the other one does not name.

    Raises:
        DataError: A file does not exist, or is none of these.
    """
    content: dict[str, Any] = {}
    further: dict[str, Any] = {}
    if path is not None:
        content = read_json(path, "tokenizer_config.json", error=DataError)
    if special_tokens is not None:
        further = read_json(special_tokens, "special_tokens_map.json", error=DataError)
    added = content.get("added_tokens_decoder", {})
    return TokenizerSettings(
        tokens={**_tokens(further), **_tokens(content)},
        added={int(number): token for number, token in added.items()},
        **_templates(content.get("chat_template"), str(path)),
    )


def _tokens(content: Mapping[str, Any]) -> dict[str, str]:
    """Returns the special tokens that a file names, by role."""
    return {
        role: _text(token)
        for role, token in content.items()
        if role.endswith("_token") and isinstance(token, str | dict)
    }


def _text(token: str | dict[str, Any]) -> str:
    return token if isinstance(token, str) else str(token["content"])


def _templates(found: Any, path: str) -> dict[str, str]:
    """Returns the template, or of several those that transformers chooses from by itself."""
    if found is None:
        return {}
    if not isinstance(found, list):
        return {"chat_template": str(found)}
    by_name = {str(one["name"]): str(one["template"]) for one in found}
    if "default" not in by_name:
        raise DataError(
            f"None of the chat templates is the default: there are {', '.join(by_name)}.",
            where=path,
            hint="Write the one that you want into a file, and set chat_template_path.",
        )
    tools = {"tool_template": by_name["tool_use"]} if "tool_use" in by_name else {}
    return {"chat_template": by_name["default"], **tools}
