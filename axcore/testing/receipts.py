"""Receipts of compilation: which tests passed, of which sources, with which compilers.

A file for each target lies in `compile_receipts` beside the tests, for git to keep. A test whose
receipt still holds need not run: its digest is that of the sources below, without their comments
and docstrings.

- A kernel's test: its own file, the modules of the plugin that the kernel's references lead to and
  what those import within the plugin, and of `axcore.ops` the op, what is imported there, and how
  kernels are chosen.
- Any other test: its own file, and all of axcore and of the plugins beside it, but for rooms that
  only run, watch or print what was compiled.

Either way what the test's file imports from beside it or from `tests/support` counts, too.
"""

import ast
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

import axcore
from axcore.config.json_files import read_json_file
from axcore.plugins import Hardware, Kernel, Ref
from axcore.testing.imports import imported_files, steps_of
from axcore.testing.op_sources import op_files

FOLDER = "compile_receipts"
AXCORE = Path(axcore.__file__).parent

NOT_COMPILED = (
    "cli",
    "complexity",
    "evaluation",
    "launch",
    "profiles",
    "resilience",
    "runs",
    "sandbox",
    "serving",
)
"""Rooms of which nothing gets into a compiled step."""

_SUITE = re.compile("compile_suite|contract")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@attrs.frozen
class Receipt:
    """That a test passed.

    Args:
        digest: Of the sources that it depends on.
        compilers: Versions of jax and of the compiler's packages.
        verdict: "passed"; a test that fails leaves no receipt.
        measured: What the test recorded, memory for example.
    """

    digest: str
    compilers: Mapping[str, str]
    verdict: str = "passed"
    measured: Mapping[str, Any] = attrs.field(factory=dict)

    def holds(self, digest: str, compilers: Mapping[str, str]) -> bool:
        """Whether neither sources nor compilers have changed."""
        return (self.digest, self.compilers) == (digest, compilers)


def receipts_file(test_file: Path, target: str) -> Path:
    """Returns where receipts of a file's tests lie."""
    return test_file.parent / FOLDER / f"{target}.json"


def read_receipts(file: Path) -> dict[str, Receipt]:
    """Returns receipts by test; none where there is no file."""
    if not file.exists():
        return {}
    told = read_json_file(file)
    return {test: Receipt(**one, compilers=told["compilers"]) for test, one in told["of"].items()}


def write_receipts(
    file: Path, compilers: Mapping[str, str], receipts: Mapping[str, Receipt]
) -> None:
    """Writes receipts of one target, all made with these compilers."""
    file.parent.mkdir(exist_ok=True)
    of = {
        test: {"digest": one.digest, "verdict": one.verdict, "measured": dict(one.measured)}
        for test, one in sorted(receipts.items())
    }
    told = {"compilers": dict(compilers), "of": of}
    file.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


@functools.cache
def compiler_versions(modules: tuple[str, ...]) -> Mapping[str, str]:
    """Returns versions of jax and of the distributions that hold these modules."""
    holders = importlib.metadata.packages_distributions()
    tops = {module.partition(".")[0] for module in modules}
    names = {"jax", "jaxlib", *(name for top in tops for name in holders.get(top, ()))}
    return {name: importlib.metadata.version(name) for name in sorted(names)}


def digest_of_test(item: pytest.Item) -> str:
    """Returns the digest of what a test that compiles depends on."""
    callspec = getattr(item, "callspec", None)
    trial = callspec.params.get("compile_trial") if callspec is not None else None
    return digest_of(item.path, trial.kernel if trial is not None else None)


def digest_of(test_file: Path, kernel: Kernel | None) -> str:
    """Returns the digest of a test's file and of what its kernel, or any train step, is made of."""
    beside = imported_files([test_file], _modules_beside(test_file))
    if kernel is None:
        plugins = [one.parent for one in test_file.parents[1].glob("*/__init__.py")]
        files = {*beside, *compiled_files(), *(file for one in plugins for file in _files(one))}
    else:
        suite = [file for file in (AXCORE / "testing").glob("*.py") if _SUITE.search(file.stem)]
        own = kernel_files(kernel)
        files = {*beside, *op_files(kernel, own), *suite, *own}
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda file: (file.name, str(file))):
        digest.update(file.name.encode() + _meaning(file))
    return digest.hexdigest()[:32]


def compiled_files() -> frozenset[Path]:
    """Returns the files of axcore that a compiled step may be made of."""
    left_out = {AXCORE / room for room in NOT_COMPILED}
    return frozenset(one for one in _files(AXCORE) if left_out.isdisjoint(one.parents))


def _meaning(file: Path) -> bytes:
    """Returns what a file says to a machine: a program without its comments and docstrings."""
    if file.suffix != ".py":
        return file.read_bytes()
    tree = ast.parse(file.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return ast.unparse(tree).encode()


def kernel_files(kernel: Kernel) -> frozenset[Path]:
    """Returns the files of a plugin that a kernel's references lead to, through all imports."""
    values = attrs.asdict(kernel, recurse=False).values()
    names = {value.target.partition(":")[0] for value in values if isinstance(value, Ref)}
    files: set[Path] = set()
    for top in {name.partition(".")[0] for name in names}:
        folder = _folder_of(top)
        modules = {".".join((top, *steps_of(file, folder))): file for file in folder.rglob("*.py")}
        roots = [modules[name] for name in names if name in modules]
        files |= imported_files(roots, modules)
        files |= set(folder.rglob("*.json"))
    return frozenset(files)


def _modules_beside(test_file: Path) -> Mapping[str, Path]:
    """Returns what a test may import by its bare name: files beside it, and support."""
    support = [folder / "tests/support" for folder in test_file.parents]
    folders = (test_file.parent, *(folder for folder in support if folder.is_dir()))
    return {file.stem: file for folder in folders for file in folder.glob("*.py")}


def _folder_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None, package
    return Path(spec.origin).parent


def _files(folder: Path) -> Iterator[Path]:
    yield from folder.rglob("*.py")
    yield from folder.rglob("*.json")


class Outcomes:
    """A plugin of pytest that writes a line for each test that passed: its name, what it recorded.

    Args:
        file: Where to.
    """

    def __init__(self, file: Path) -> None:
        self.file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes a test that passed."""
        if report.when == "call" and report.passed:
            with self.file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps([report.nodeid, dict(report.user_properties)]) + "\n")


def key_of(test_file: Path, nodeid: str) -> str:
    """Returns a test's name in receipts, the same from whatever folder pytest is run."""
    return test_file.name + nodeid[nodeid.index("::") :]


def target_modules(hardware: Hardware) -> tuple[str, ...]:
    """Returns the modules of the compiler for some hardware.

    Raises:
        PluginError: It is not installed.
    """
    from axcore.aot.targets import find_aot_target

    return tuple(find_aot_target(hardware).modules)
