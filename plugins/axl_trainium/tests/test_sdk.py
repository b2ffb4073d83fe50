"""Kernels import NKI from one place: AWS's SDK where it is installed, else the simulator."""

import importlib
import inspect
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_trainium import calling, sdk, simulator
from axl_trainium.calling import call_kernel, float32_like
from axl_trainium.kernels.attention.nki_forward import attention_forward
from axl_trainium.kernels.rms_norm.nki_kernels import rms_norm_forward
from axl_trainium.signatures import ISA, LANGUAGE

from axcore.complexity.trace import trace_model
from axcore.errors import KernelError
from axcore.experiments.tiny import tiny
from axcore.plugins import Hardware

needs_sdk = pytest.mark.skipif(
    not sdk.IS_SDK, reason="AWS's Neuron SDK, which has NKI, is not installed"
)


@pytest.mark.skipif(sdk.IS_SDK, reason="AWS's Neuron SDK is installed")
def test_the_simulator_stands_in_where_there_is_no_sdk():
    assert sdk.nki is simulator
    assert sdk.nisa is simulator.isa
    assert sdk.nl is simulator.language


def test_what_only_holds_the_name_is_not_the_sdk(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "nki", raising=False)
    (tmp_path / "nki.py").touch()
    assert not sdk.is_installed()
    (tmp_path / "nki").mkdir()
    (tmp_path / "nki" / "__init__.py").write_text("raise ImportError('go elsewhere')")
    importlib.invalidate_caches()
    assert not sdk.is_installed()
    (tmp_path / "nki" / "isa.py").touch()
    importlib.invalidate_caches()
    assert sdk.is_installed()


@pytest.mark.usefixtures("runs_nki")
def test_kernels_run_under_jit_with_static_choices():
    x = jnp.arange(12.0).reshape(1, 3, 4)
    outputs = jax.ShapeDtypeStruct(x.shape, x.dtype)
    y = jax.jit(lambda x: call_kernel(rms_norm_forward, outputs, x, jnp.ones((1, 4)), epsilon=0.5))(
        x
    )
    expected = 1 / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + 0.5)
    np.testing.assert_allclose(y, x * expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("is_sdk", "backend", "reason"),
    [
        (False, "neuron", "NKI is not installed, and its simulator does not run on a chip"),
        (True, "cpu", "NKI is installed, whose kernels run on a chip, and there is none"),
    ],
)
def test_kernels_are_refused_where_they_cannot_run(monkeypatch, is_sdk, backend, reason):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(calling, "IS_SDK", is_sdk)
    with pytest.raises(KernelError, match=f"rms_norm_forward is an NKI kernel: {reason}"):
        call_kernel(rms_norm_forward, float32_like(1), jnp.ones(1))


def test_tiny_is_trained_by_portable_kernels_which_need_no_leave():
    trace = trace_model(tiny(), Hardware.parse("trainium-trn2-16"))
    assert {"attention", "cross_entropy", "rms_norm"} <= set(trace.kernels)
    assert set().union(*trace.kernels.values()) == {"portable"}


@needs_sdk
@pytest.mark.parametrize("name", sorted(ISA))
def test_instructions_have_the_signatures_of_the_table(name):
    real = inspect.signature(getattr(sdk.nisa, name)).parameters
    table = ISA[name].signature().parameters
    assert set(table) <= set(real)


@needs_sdk
@pytest.mark.parametrize("name", sorted(LANGUAGE))
def test_functions_have_the_signatures_of_the_table(name):
    real = inspect.signature(getattr(sdk.nl, name)).parameters
    assert set(LANGUAGE[name].signature().parameters) <= set(real)


@needs_sdk
def test_the_sdks_own_simulator_normalises_rows_as_numpy_does():
    x = np.random.default_rng(0).standard_normal((2, 100, 300)).astype(np.float32)
    scale = np.full((1, 300), 1.5, np.float32)
    y = sdk.nki.simulate(rms_norm_forward)(x, scale, epsilon=0.1)
    expected = 1 / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + 0.1)
    np.testing.assert_allclose(y, 1.5 * x * expected, rtol=1e-3)


@needs_sdk
def test_the_sdks_own_simulator_attends_as_numpy_does():
    numbers = np.random.default_rng(0)
    q, k, v = (numbers.standard_normal((1, rows, 64), np.float32) for rows in (150, 700, 700))
    start = np.arange(150, dtype=np.float32).reshape(1, 150, 1)
    choices = {"scale": 0.125, "soft_cap": None, "left": None, "right": None, "offset": 0}
    o, lse = sdk.nki.simulate(attention_forward)(
        q, k, v, start, start + 200, start_XR2=None, **choices
    )
    place = np.arange(700)[None, None, :]
    logits = 0.125 * np.einsum("xth,xsh->xts", q, k)
    weights = np.where((place >= start) & (place < start + 200), np.exp(logits), 0)
    total = weights.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(lse, np.log(total), rtol=1e-3)
    np.testing.assert_allclose(o, np.einsum("xts,xsv->xtv", weights / total, v), atol=1e-3)
