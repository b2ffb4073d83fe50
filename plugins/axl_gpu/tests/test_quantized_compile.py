"""Train steps in float8 and int8, really compiled for H100s: every product of a linear is narrow.

The compiler needs no GPU, only its packages: in the environment, or in the folder that
AXL_CUDA_PACKAGES names (`pip install --no-deps --target FOLDER jax-cuda13-pjrt jax-cuda13-plugin
nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-runtime nvidia-cudnn-cu13`).
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = os.environ.get("AXL_CUDA_PACKAGES", "")
IS_INSTALLED = importlib.util.find_spec("jax_cuda13_plugin") is not None
LINEARS = 7
"""Of a layer, which is compiled once for all layers."""

MERGED = {"float8": 0, "int8": 3}
"""XLA makes one of int8 products of one input: query, key and value, and gate and up."""

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(
        not (FOLDER or IS_INSTALLED),
        reason="jax-cuda13-plugin is not installed, and AXL_CUDA_PACKAGES names no folder of it",
    ),
]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Returns a function from a scheme's name to what its train step multiplies."""

    def compiled(name):
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": FOLDER,
            "XLA_FLAGS": "--xla_gpu_enable_triton_gemm=false",  # cuBLAS, whose calls can be counted
        }
        child = Path(__file__).with_name("fp8_child.py")
        done = subprocess.run(
            [sys.executable, str(child), str(tmp_path_factory.mktemp("text")), name],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout.splitlines()[-1])

    return compiled


@pytest.fixture(scope="module")
def wide(compiled):
    return compiled("wide")["products"]


@pytest.mark.parametrize(
    ("name", "dtype"), [("current", "float8"), ("delayed", "float8"), ("int8", "int8")]
)
def test_each_linear_compiles_to_three_narrow_products(compiled, wide, name, dtype):
    found = compiled(name)
    assert found["target"] == "gpu-h100-8"
    assert found["products"][dtype] == 3 * LINEARS - MERGED[dtype]
    assert found["products"]["wide"] <= wide["wide"] - LINEARS
    assert {kernel for op, kernel in found["plan"].items() if "quantized" in op} == {dtype}


def test_without_a_modifier_no_product_is_narrow(wide):
    assert (wide["float8"], wide["int8"]) == (0, 0)
    assert wide["wide"] >= 3 * LINEARS
