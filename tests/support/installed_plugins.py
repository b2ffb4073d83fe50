"""`installed`: makes distributions that are found for the length of one test."""

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import attrs
import pytest

from axcore.plugins import PluginHost, load_host
from axcore.plugins.discovery import discover
from axcore.testing import make_dist


@attrs.frozen
class Installed:
    """What the test has installed: `add` one more, `host` loads those alone."""

    root: Path
    names: list[str] = attrs.field(factory=list)

    def add(self, name: str, plugin: str = "", **details: object) -> Path:
        """Installs a distribution."""
        self.names.append(name)
        made = make_dist(self.root, name, plugin, **details)  # type: ignore[arg-type]
        importlib.invalidate_caches()
        return made

    def host(self, environment: Mapping[str, str] | None = None) -> PluginHost:
        """Loads a host that sees the core and what the test installed."""
        mine = [one for one in discover() if one.distribution in self.names]
        return load_host(environment or {}, mine)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installed]:
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield Installed(tmp_path)
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def source() -> Callable[[str], str]:
    """Returns plugin source with the usual imports in front."""

    def with_imports(body: str) -> str:
        return f"from axcore.plugins import *\n{body}"

    return with_imports
