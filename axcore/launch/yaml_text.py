"""YAML as people write it: no anchors, and lines of shell as lines."""

from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def yaml_text(values: Any) -> str:
    """Returns values as YAML, in their own order."""
    return str(yaml.dump(values, Dumper=_Dumper, sort_keys=False, width=1000))
