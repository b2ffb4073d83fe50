"""Configs as JSON and YAML text, through cattrs, with an exact round trip."""

import functools
import hashlib
import json
from typing import TYPE_CHECKING, Any

from axcore.config.decode import check_length, empty_text, from_dict, too_deep
from axcore.config.encode import to_dict
from axcore.config.json_files import JsonDepthError, parse_json
from axcore.errors import ConfigError

if TYPE_CHECKING:
    from cattrs.preconf.json import JsonConverter


def to_json(cfg: Any) -> str:
    """Return a config as indented JSON."""
    plain = {"unstructure_as": object}  # to_dict left nothing to take apart
    return _converter().dumps(to_dict(cfg), **plain, indent=2, ensure_ascii=False) + "\n"


def from_json(text: str, *, set_in: str = "JSON") -> Any:
    """Return the config in a JSON text; raises ConfigError as `from_dict` does."""
    return from_dict(load_json(text, set_in), set_in=set_in)


def load_json(text: str, set_in: str) -> Any:
    """Return the plain data in a JSON text.

    Raises:
        ConfigError: It is not JSON, is empty, or holds a key twice.
    """
    check_length(text, set_in)
    if not text.strip():
        raise empty_text(set_in)
    try:
        return parse_json(text)
    except JsonDepthError:
        raise too_deep(set_in) from None
    except ValueError as error:
        raise ConfigError(f"not JSON: {error}", set_in=set_in) from None


@functools.cache
def _converter() -> "JsonConverter":
    from cattrs.preconf.json import make_converter

    return make_converter()


def to_yaml(cfg: Any) -> str:
    """Return a config as YAML."""
    from axcore.config.yaml_text import dump_yaml

    return dump_yaml(to_dict(cfg))


def from_yaml(text: str, *, set_in: str = "YAML") -> Any:
    """Return the config in a YAML text; raises ConfigError as `from_dict` does."""
    from axcore.config.yaml_text import load_yaml

    return from_dict(load_yaml(text, set_in), set_in=set_in)


def digest(cfg: Any) -> str:
    """Return a short stable fingerprint of a config's value."""
    canonical = json.dumps(to_dict(cfg), sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
