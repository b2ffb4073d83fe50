"""YAML as plain data: no tags that run code, no duplicate keys, scalars as YAML 1.2 reads them.

So `1e-3` is a number, and `no`, `on` and `2026-11-21` are text.
"""

import re
from typing import Any

import yaml

from axcore.config.json_files import check_length, exact_float, too_deep
from axcore.errors import ConfigError

_SCALARS = (
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)",
        "-+.0123456789",
    ),
)


class _Loader(yaml.SafeLoader):
    """The safe loader with the scalars of YAML 1.2; it also refuses duplicate keys."""

    yaml_implicit_resolvers: dict[Any, Any] = {}

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        mapping: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise _at_line(key_node, f"keys are text, got {key_node.value!r}")
            if key in mapping:
                raise _at_line(key_node, f"the key {key!r} is twice in one mapping")
            mapping[key] = self.construct_object(value_node, deep=deep)
        return mapping

    def int(self, node: Any) -> int:
        """Return a decimal, octal or hexadecimal number."""
        text = self.construct_scalar(node)
        is_prefixed = text.lstrip("+-").startswith(("0o", "0x"))
        return int(text, 0 if is_prefixed else 10)

    def number(self, node: Any) -> float:
        """Return a number with a point or an exponent, or infinity."""
        return exact_float(re.sub(r"\.(?=inf)", "", self.construct_scalar(node), flags=re.I))


class _Dumper(yaml.SafeDumper):
    """Quotes what either version of YAML would read as something else than text."""

    def text(self, text: str) -> Any:
        """Return text in the style that keeps it as it is."""
        # PyYAML takes these for ends of lines, and folds them where it does not escape them.
        style = '"' if any(mark in text for mark in "\x85\u2028\u2029") else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


for _name, _pattern, _first in _SCALARS:
    _regexp = re.compile(f"(?:{_pattern})\\Z")
    for _class in (_Loader, _Dumper):
        _characters = ["" if c == "\0" else c for c in _first]
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", _regexp, _characters)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.number)
_Dumper.add_representer(str, _Dumper.text)


def load_yaml(text: str, set_in: str) -> Any:
    """Return the plain data in a YAML text.

    Raises:
        ConfigError: It is not YAML, holds a tag for anything but plain data, or a key twice.
    """
    check_length(text, set_in)
    try:
        return yaml.load(text, Loader=_Loader)
    except ConfigError as error:
        raise ConfigError(error.what, where=error.where, set_in=set_in) from None
    except (yaml.YAMLError, ValueError, TypeError, OverflowError) as error:
        raise ConfigError(f"not plain YAML: {error}", set_in=set_in) from None
    except RecursionError:
        raise too_deep(set_in) from None


def dump_yaml(data: Any) -> str:
    """Return plain data as YAML, keys in their order."""
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return text


def _at_line(node: Any, what: str) -> ConfigError:
    return ConfigError(what, where=f"line {node.start_mark.line + 1}")
