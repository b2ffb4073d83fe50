"""Norms of gradients by module: parts of the global norm, measured without touching a step."""

import jax
import numpy as np
import pytest

import axcore as ax
from axcore.errors import ConfigError
from axcore.testing import small_experiment, trainer_on
from axcore.trainer.gradient_norms import GradientNorms


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("norms")
    plain = ax.update_config(
        small_experiment(folder / "texts"),
        {"mesh": {"fsdp": 1}, "max_steps": 4, "log_every_steps": 1},
    )
    found = {}
    for every in (0, 2):
        cfg = ax.update_config(plain, {"gradient_norms_every_steps": every})
        result = trainer_on(cfg, 1).run(folder / str(every), quiet=True)
        found[every] = ax.load_run(folder / str(every)).metrics["train"], result.state
    return found


@pytest.mark.slow
def test_norms_are_parts_of_the_global_norm(runs):
    metrics, _ = runs[2]
    norms = {name: values for name, values in metrics.items() if name.startswith("gradient_norm/")}
    layers = [f"gradient_norm/decoder.stack.layer[{layer}]" for layer in range(2)]
    assert {*layers, "gradient_norm/decoder.embedding"} <= norms.keys()
    assert np.isnan(norms[layers[0]]).tolist() == [True, False, True, False]
    total = np.sqrt(sum(values**2 for values in norms.values()))[1::2]
    np.testing.assert_allclose(total, metrics["gradient_norm"][1::2], rtol=1e-6)


@pytest.mark.slow
def test_measuring_changes_no_bit_of_training(runs):
    (off, state), (on, other) = runs[0], runs[2]
    assert not [name for name in off if name.startswith("gradient_norm/")]
    np.testing.assert_array_equal(off["loss"], on["loss"])
    jax.tree.map(np.testing.assert_array_equal, state, other)


def test_layers_that_alternate_and_experts():
    model = ax.experiment("gpt-oss-20b").model.build()
    gradients = jax.eval_shape(lambda: model.init(0))
    norms = jax.eval_shape(GradientNorms(model.param_specs(), 1), gradients, 1)
    assert {name.removeprefix("gradient_norm/"): found.shape for name, found in norms.items()} == {
        "decoder.embedding": (),
        "decoder.norm": (),
        "decoder.stack.layer.layer[0]": (12,),
        "decoder.stack.layer.layer[1]": (12,),
        "head": (),
    }


def test_norms_at_steps_that_are_not_logged_are_refused(tmp_path):
    cfg = ax.update_config(
        small_experiment(tmp_path / "texts"),
        {"log_every_steps": 10, "gradient_norms_every_steps": 25},
    )
    with pytest.raises(ConfigError, match="25 is no multiple of log_every_steps, 10") as found:
        trainer_on(cfg, 1)
    assert found.value.hint == "--set gradient_norms_every_steps=30"
