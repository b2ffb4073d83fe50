"""Receipts of compilation: which tests passed, of which programs, with which compilers.

A file for each target is in `compile_receipts` next to the tests, for git to keep. A test whose
receipt still holds need not compile anything. It holds for the same compilers and either

- the same sources, which takes no tracing to find out, or
- the same programs (see `axcore.testing.programs`), lowered by a test whose own code, which
  says what was expected of them, is the same.

All sources count without their comments and docstrings. They are:

- A kernel's test: its own file, the modules of the plugin that the kernel's references lead to and
  what those import within the plugin, and of `axcore.ops` the op, what is imported there, and how
  kernels are chosen.
- Any other test: its own file, and all of axcore and of the plugins next to it, but for packages
  that only run, watch or print what was compiled.

Either way what the test's file imports from next to it or from `tests/support` counts, too, with
the data next to that. A test's own code is what its file says, and what that uses of files next to
it, of `axcore.aot`, which reads compiled programs, and for a kernel's test of the suite that it
inherits. Imports do not count, so code that moves to another file voids nothing.
"""

import ast
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

import axcore
from axcore.config.json_files import read_json_file
from axcore.plugins import Hardware, Kernel, Ref
from axcore.testing.receipt_sources import (
    drop_docstrings,
    imported_files,
    op_files,
    own_code,
    steps_of,
)

FOLDER = "compile_receipts"
AXCORE = Path(axcore.__file__).parent

NOT_COMPILED = (
    "batch_inference",
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
"""Packages of which nothing gets into a compiled step."""

_SUITE = re.compile("compile_suite|contract")


def _as_tuple(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(names)  # of a list, as JSON has it


@attrs.frozen
class Receipt:
    """That a test passed.

    Args:
        digest: Of the sources that it depends on.
        compilers: Versions of jax and of the compiler's packages.
        own_digest: Of the test's own code.
        programs: Digests of the programs that it compiled, in order.
        verdict: "passed"; a test that fails leaves no receipt.
        measured: What the test recorded, memory for example.
    """

    digest: str
    compilers: Mapping[str, str]
    own_digest: str = ""
    programs: tuple[str, ...] = attrs.field(default=(), converter=_as_tuple)
    verdict: str = "passed"
    measured: Mapping[str, Any] = attrs.field(factory=dict)

    def holds(self, digest: str, compilers: Mapping[str, str]) -> bool:
        """Whether neither sources nor compilers have changed."""
        return (self.digest, self.compilers) == (digest, compilers)

    def may_hold(self, own_digest: str, compilers: Mapping[str, str]) -> bool:
        """Whether it would hold for the same programs, which takes lowering to find out."""
        same = (self.own_digest, self.compilers) == (own_digest, compilers)
        return same and bool(self.programs)


def receipts_file(test_file: Path, target: str) -> Path:
    """Return where receipts of a file's tests are."""
    return test_file.parent / FOLDER / f"{target}.json"


def read_receipts(file: Path) -> dict[str, Receipt]:
    """Return receipts by test; none where there is no file."""
    if not file.exists():
        return {}
    told = read_json_file(file)
    return {test: Receipt(**one, compilers=told["compilers"]) for test, one in told["of"].items()}


def receipt_of(receipts: Mapping[str, Receipt], key: str) -> Receipt | None:
    """Return a test's receipt: by its name, or if its file was renamed, by what follows that."""
    test = key[key.index("::") :]
    same = [one for other, one in receipts.items() if other.endswith(test)]
    return receipts.get(key) or (same[0] if len(same) == 1 else None)


def write_receipts(
    file: Path, compilers: Mapping[str, str], receipts: Mapping[str, Receipt]
) -> None:
    """Write receipts of one target, all made with these compilers."""
    file.parent.mkdir(exist_ok=True)
    of = {
        test: {
            "digest": one.digest,
            "own_digest": one.own_digest,
            "programs": one.programs,
            "verdict": one.verdict,
            "measured": dict(one.measured),
        }
        for test, one in sorted(receipts.items())
    }
    told = {"compilers": dict(compilers), "of": of}
    file.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


@functools.cache
def compiler_versions(modules: tuple[str, ...]) -> Mapping[str, str]:
    """Return versions of jax and of the distributions that hold these modules."""
    holders = importlib.metadata.packages_distributions()
    tops = {module.partition(".")[0] for module in modules}
    names = {"jax", "jaxlib", *(name for top in tops for name in holders.get(top, ()))}
    return {name: importlib.metadata.version(name) for name in sorted(names)}


def kernel_of_test(item: pytest.Item) -> Kernel | None:
    """Return the kernel that a test compiles; None where it is not a test of a `CompileSuite`."""
    callspec = getattr(item, "callspec", None)
    trial = callspec.params.get("compile_trial") if callspec is not None else None
    return trial.kernel if trial is not None else None


def digest_of(test_file: Path, kernel: Kernel | None) -> str:
    """Return the digest of a test's file and of what its kernel, or any train step, is made of."""
    beside = imported_files([test_file], _modules_beside(test_file))
    if kernel is None:
        plugins = [one.parent for one in test_file.parents[1].glob("*/__init__.py")]
        files = {*beside, *compiled_files(), *(file for one in plugins for file in _files(one))}
    else:
        suite = [file for file in (AXCORE / "testing").glob("*.py") if _SUITE.search(file.stem)]
        own = kernel_files(kernel)
        files = {*beside, *op_files(kernel, own), *suite, *own}
    return _digest({*files, *_data_of(beside)})


def own_digest_of(test_file: Path, kernel: Kernel | None) -> str:
    """Return the digest of a test's own code: what it does with programs that it compiled."""
    packages = ("aot", "testing") if kernel is not None else ("aot",)
    modules = {
        ".".join(("axcore", name, *steps_of(file, AXCORE / name))): file
        for name in packages
        for file in (AXCORE / name).rglob("*.py")
    }
    # By name too: a test may inherit the suite through a class of its own package.
    also = (("axcore.testing", "CompileSuite"),) if kernel is not None else ()
    code, files = own_code(test_file, {**_modules_beside(test_file), **modules}, also)
    data = sorted(_data_of(files), key=lambda file: file.name)
    written = [line.encode() for line in code] + [file.read_bytes() for file in data]
    return hashlib.sha256(b"\0".join(written)).hexdigest()[:32]


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda file: (file.name, str(file))):
        digest.update(file.name.encode() + _meaning(file))
    return digest.hexdigest()[:32]


def _data_of(files: Iterable[Path]) -> set[Path]:
    """Return the JSON that is next to some files and has their names."""
    return {data for file in files if (data := file.with_suffix(".json")).exists()}


def compiled_files() -> frozenset[Path]:
    """Return the files of axcore that a compiled step may be made of."""
    left_out = {AXCORE / package for package in NOT_COMPILED}
    return frozenset(one for one in _files(AXCORE) if left_out.isdisjoint(one.parents))


def _meaning(file: Path) -> bytes:
    """Return what a file says to a machine: a program without its comments and docstrings."""
    written = file.read_bytes()
    return _without_comments(written) if file.suffix == ".py" else written


@functools.cache  # parsing all of axcore takes seconds, and each test's digest needs it
def _without_comments(program: bytes) -> bytes:
    tree = ast.parse(program)
    drop_docstrings(tree)
    return ast.unparse(tree).encode()


def kernel_files(kernel: Kernel) -> frozenset[Path]:
    """Return the files of a plugin that a kernel's references lead to, through all imports."""
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
    """Return what a test may import by its bare name: files next to it, and support."""
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


def key_of(test_file: Path, nodeid: str) -> str:
    """Return a test's name in receipts, the same from whatever folder pytest is run."""
    return test_file.name + nodeid[nodeid.index("::") :]


def target_modules(hardware: Hardware) -> tuple[str, ...]:
    """Return the modules of the compiler for some hardware.

    Raises:
        PluginError: It is not installed.
    """
    from axcore.aot.targets import find_aot_target

    return tuple(find_aot_target(hardware).modules)
