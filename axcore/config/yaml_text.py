"""Reading YAML safely: plain data only, no tags that run code, no duplicate keys."""

from typing import Any

import yaml

from axcore.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """The safe loader, which also refuses duplicate keys."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            text = str(key.value)
            if text in seen:
                raise ConfigError(
                    f"the key {text!r} stands twice in one mapping",
                    where=f"line {key.start_mark.line + 1}",
                    mend="keep one of them",
                )
            seen.add(text)
        return super().construct_mapping(node, deep)


def load_yaml(text: str, set_in: str) -> Any:
    """Returns the plain data in a YAML text.

    Raises:
        ConfigError: It is not YAML, holds a tag for anything but plain data, or a key twice.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise error if isinstance(error, ConfigError) else _not_yaml(error, set_in) from error
    except RecursionError as error:
        raise ConfigError("nested too deep", set_in=set_in) from error


def _not_yaml(error: Exception, set_in: str) -> ConfigError:
    return ConfigError(f"not plain YAML: {error}", set_in=set_in)
