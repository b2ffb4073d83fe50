"""The files of a new plugin: templates with a name put in."""

import keyword
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from string import Template

import attrs

from axcore import __version__
from axcore.errors import PluginError

KINDS: Mapping[str, tuple[str, str]] = {
    "command": ("command", "A command of axcore."),
    "data": ("source", "A source of text for axcore."),
    "evaluation": ("questions", "A task for axcore to evaluate models on."),
    "experiment": ("experiment", "An experiment for axcore."),
    "feature": ("features", "A feature for any model of axcore, and what it costs."),
    "hardware": ("detect", "A family of chips for axcore, with its mesh rule."),
    "kernels": ("loss", "A kernel for axcore."),
    "launcher": ("engine", "An engine that starts runs of axcore."),
    "layers": ("norm", "A layer for axcore."),
    "modifier": ("modifier", "A change of configs for axcore."),
    "observer": ("journal", "Something that watches runs of axcore."),
    "op": ("op", "An operation for layers of axcore, with a kernel."),
    "quantization": ("scheme", "A narrow format for products of axcore."),
    "storage": ("storage", "A place for checkpoints of axcore."),
    "task": ("objective", "An objective for axcore to train by."),
    "tokenizer": ("tokenizer", "A tokenizer for axcore."),
    "writer": ("writer", "A place for metrics of axcore."),
}
"""By kind: the name of the module beside `plugin.py`, and what the distribution is."""

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_PREFIX = "axl-"


@attrs.frozen
class NewPlugin:
    """A plugin to write.

    Args:
        distribution: Its name everywhere, as `axl-acme`.
        kind: What it brings: one of `KINDS`.
    """

    distribution: str
    kind: str

    @classmethod
    def named(cls, name: str, kind: str) -> "NewPlugin":
        """Returns the plugin for a name as a user types it, `acme` or `axl-acme`.

        Raises:
            PluginError: The name cannot be a distribution's, or a package's in Python.
        """
        short = name.removeprefix(_PREFIX)
        if not _NAME.fullmatch(short) or keyword.iskeyword(short.replace("-", "_")):
            raise PluginError(
                f"{name!r} cannot name a plugin",
                where="axcore plugin new",
                hint="use small letters and digits, with single dashes between: axl-acme",
            )
        return cls(_PREFIX + short, kind)

    def files(self) -> Iterator[tuple[str, str]]:
        """Yields the path and the text of every file."""
        package, module = self._values["package"], self._values["module"]
        for path, template in (
            ("pyproject.toml", "common/pyproject.toml"),
            ("README.md", "common/README.md"),
            ("tests/conftest.py", "common/conftest.py"),
            (f"tests/test_{package}.py", f"{self.kind}/test.py"),
            (f"{package}/__init__.py", "common/init.py"),
            (f"{package}/plugin.py", f"{self.kind}/plugin.py"),
            (f"{package}/{module}.py", f"{self.kind}/module.py"),
        ):
            yield path, Template(_template(template)).substitute(self._values)
        yield f"{package}/py.typed", ""

    def write(self, folder: Path) -> list[Path]:
        """Writes the files; returns their paths.

        Raises:
            PluginError: The folder exists and is not empty; nothing is written.
        """
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise PluginError(
                f"{folder} exists already",
                where="axcore plugin new",
                hint="choose another name, or another folder by --dir",
            )
        paths = []
        for name, text in self.files():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            paths.append(path)
        return paths

    @property
    def _values(self) -> dict[str, str]:
        module, summary = KINDS[self.kind]
        name = self.distribution.removeprefix(_PREFIX).replace("-", "_")
        return {
            "distribution": self.distribution,
            "package": self.distribution.replace("-", "_"),
            "name": name if self.kind != "hardware" else name.replace("_", ""),
            "constant": name.upper(),
            "command": name.replace("_", "-"),
            "module": module,
            "summary": summary,
            "axcore_version": ".".join(__version__.split(".")[:2]),
        }


def _template(name: str) -> str:
    file = resources.files("axcore.cli") / "templates" / f"{name}.txt"
    return file.read_text(encoding="utf-8")
