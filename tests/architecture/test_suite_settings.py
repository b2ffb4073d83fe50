"""One place says how tests run, for axcore and for its plugins: the `conftest.py` at the root."""

import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

ROOT = Path(__file__).parents[2]
SUITES = (ROOT / "tests", *ROOT.glob("plugins/*"))
SETTINGS = ("XLA_FLAGS", "JAX_PLATFORMS", "jax.config.update(", "filterwarnings", "[tool.pytest")


def test_nothing_below_the_root_sets_anything_anew():
    assert len(SUITES) >= 5
    files = [
        file
        for suite in SUITES
        for name in ("conftest.py", "pytest.ini", "tox.ini", "pyproject.toml")
        for file in suite.rglob(name)
    ]
    assert len(files) >= 5
    texts = {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in files}
    found = [f"{name}: {one}" for name, text in texts.items() for one in SETTINGS if one in text]
    assert found == []
    assert not (ROOT / "plugins/conftest.py").exists()


def test_the_settings_hold():
    assert jax.device_count() == 16
    with pytest.raises(ValueError, match="jax_numpy_rank_promotion"):
        jnp.ones(3) + jnp.ones((2, 3))
    with pytest.raises(ValueError, match="no available implicit"):
        jnp.ones(3, jnp.float32) + jnp.ones(3, jnp.bfloat16)
    with pytest.raises(UserWarning, match="shown"):
        warnings.warn("shown", UserWarning, stacklevel=1)
