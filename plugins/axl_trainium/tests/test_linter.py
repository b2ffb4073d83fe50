"""Kernel files keep to NKI's Python and public signatures; what does not is named by line."""

import inspect
from pathlib import Path

import axl_trainium.kernels
import pytest
from axl_trainium import signatures
from axl_trainium.linter import lint, lint_folder
from axl_trainium.simulator import isa, language
from axl_trainium.simulator.tensor import Tensor

FOLDER = Path(axl_trainium.kernels.__file__).parent

KERNEL = '''"""A kernel."""

from axl_trainium.kernels.nki_tiles import load_rows
from axl_trainium.sdk import nisa, nki, nl


@nki.jit
def kernel(x):
    """Returns x."""
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    LINE
    return y
'''


def test_every_kernel_file_is_clean():
    assert sorted(path.name for path in FOLDER.rglob("nki_*.py"))
    assert [str(finding) for finding in lint_folder(FOLDER)] == []


def test_a_clean_file_has_no_findings():
    assert lint(KERNEL.replace("LINE", "nisa.dma_copy(dst=y, src=x)"), "k.py") == []


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("while True: y = x", "While is not of NKI's Python; write a for over range()"),
        ("y = [x for _ in range(3)]", "ListComp is not of NKI's Python; write the loop out"),
        ("assert x", "Assert is not of NKI's Python; refuse the call in the kernel's predicate"),
        ("f = lambda i: x", "Lambda is not of NKI's Python; name the function with def"),
        ("with x: y = x", "With is not of NKI's Python"),
        ("import numpy", "Import is not of NKI's Python; import nisa, nki and nl"),
        ("from numpy import exp", "ImportFrom is not of NKI's Python"),
        ("y = f'{x}'", "JoinedStr is not of NKI's Python"),
        ("for i in x: y = i", "loops over x; loop over range(), or by nl.fori_loop"),
        ("for i in nl.affine_range(3): y = i", "loops over nl.affine_range(3)"),
        ("y = nl.affine_range(3)", "nl.affine_range is not in the table of public signatures"),
        ("y = nl.mgrid", "nl.mgrid is not in the table"),
        ("y = nisa.engine.vector", "nisa.engine.vector is not in the table"),
        ("y = nki.simulate(x)", "nki.simulate is not in the table"),
        (
            "y = x.T",
            "x.T is not an attribute of tensors that the table knows; take one of dtype, shape",
        ),
        ("y = x.reshape((3, 4))", "x.reshape is not in the table"),
        ("print(x)", "calls print, which is neither of axl_trainium.kernels nor of NKI's Python"),
        ("load_rows(tensor=x)", "calls load_rows by keyword; give functions of kernels"),
        ("nisa.dma_copy(y, x)", "dma_copy has arguments by position; name them: dst=, ..."),
        (
            "nisa.memset(dst=y)",
            "nki.isa.memset: missing a required argument: 'value'; its arguments",
        ),
        ("nisa.memset(dst=y, value=0, mask=x)", "got an unexpected keyword argument 'mask'"),
        ("nisa.memset(**x)", "calls nki.isa.memset with unpacked arguments; write them out"),
        (
            "nisa.nc_matmul(dst=y, stationary=x, moving=x)",
            "nc_matmul does not say whether it adds to dst; pass accumulate=True or False",
        ),
        ("nl.fori_loop(0, 3)", "nki.language.fori_loop: missing a required argument: 'body_fun'"),
        ("x.ap(shape=3)", "nki.language.NkiTensor.ap: missing a required argument: 'pattern'"),
        ("x[0](y)", "Subscript is not of NKI's Python"),
        ("return y", "kernel returns early; return at its end only"),
        ("if x.shape: return y", "kernel returns early; return at its end only"),
    ],
)
def test_what_is_not_of_the_subset_is_named_with_its_line_and_a_hint(line, text):
    findings = [str(finding) for finding in lint(KERNEL.replace("LINE", line), "k.py")]
    assert any(finding.startswith("k.py:11: ") and text in finding for finding in findings), (
        findings
    )


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("import numpy as np", "k.py:1: Import is not of NKI's Python"),
        ("from numpy import exp", "k.py:1: imports exp from numpy; import nisa, nki, nl from"),
        ("from axl_trainium.sdk import IS_SDK", "k.py:1: imports IS_SDK from axl_trainium.sdk"),
        ("class A: pass", "k.py:1: ClassDef is not of NKI's Python"),
        ("@cache\ndef f(x):\n    return x", "k.py:2: f is under @cache; take @nki.jit or none"),
        ("def f(*, x):\n    return x", "k.py:1: f has arguments that are optional, or by keyword"),
        ("def f(x=1):\n    return x", "k.py:1: f has arguments that are optional, or by keyword"),
        (
            "def f(x):\n    @nki.jit\n    def g(y):\n        return y\n    return x",
            "k.py:3: g is under @nki.jit",
        ),
    ],
)
def test_files_hold_imports_constants_and_functions(source, text):
    assert any(str(finding).startswith(text) for finding in lint(source, "k.py"))


# -- The table -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(signatures.ISA))
def test_the_simulator_has_the_instructions_of_the_table_and_takes_only_their_arguments(name):
    simulated = inspect.unwrap(getattr(isa, name))
    table = list(signatures.ISA[name].signature().parameters)
    taken = list(inspect.signature(simulated).parameters)
    assert taken == [argument for argument in table if argument in taken]


@pytest.mark.parametrize(
    ("function", "public"),
    [
        (language.ndarray, signatures.LANGUAGE["ndarray"]),
        (language.fori_loop, signatures.LANGUAGE["fori_loop"]),
        (Tensor.ap, signatures.TENSOR["ap"]),
    ],
)
def test_the_simulators_functions_have_the_signatures_of_the_table(function, public):
    taken = [name for name in inspect.signature(function).parameters if name != "self"]
    assert taken == list(public.signature().parameters)


def test_the_simulator_has_every_name_of_the_table():
    assert all(hasattr(language, name) for name in signatures.LANGUAGE_NAMES)
    assert all(hasattr(isa.reduce_cmd, name.rpartition(".")[2]) for name in signatures.ISA_NAMES)


def test_every_entry_of_the_table_names_the_page_that_it_was_read_on():
    tables = (signatures.ISA, signatures.LANGUAGE, signatures.TENSOR)
    pages = [one.page for table in tables for one in table.values()]
    assert len(set(pages)) == len(pages)
    assert all(page.startswith(signatures.SITE) and page.endswith(".html") for page in pages)
