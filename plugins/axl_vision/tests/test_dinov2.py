"""DINOv2: pictures of any size, weights both ways, and classifiers that begin with its encoder."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_vision.dinov2 import LayerScaledPreNorm, bicubic_weights
from axl_vision.experiments import digits
from axl_vision.models import dinov2, dinov2_classifier
from axl_vision.models.dinov2 import DINOV2
from numpy_state import numpy_state
from rounding import assert_same_to_rounding

from axcore.config import evolve, update_config
from axcore.errors import ConfigError
from axcore.interop import EncoderAlone, HuggingFace, from_hugging_face, to_hugging_face
from axcore.layers import MoE, NoNorm
from axcore.module import DTypes, count_params, functional
from axcore.testing.tiny import trainer_on

SIZES = {"image_size": 16, "positions_size": 16, "patch_size": 4}
PIXELS = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)
CLASSIFIER = dinov2_classifier("toy", num_classes=5, num_registers=2, **SIZES)


@pytest.mark.parametrize(
    ("size", "count"), [("small", 22_056_192), ("base", 86_579_712), ("giant", 1_136_479_232)]
)
def test_published_models_have_as_many_parameters(size, count):
    # Theirs count the mask token too, which is not trained here.
    cfg = dinov2(size)
    assert count_params(cfg.build().param_specs()) == count
    assert cfg.encoder.num_patches == 256
    assert cfg.encoder.num_positions == 1 + 37**2


def test_a_branch_is_scaled(random):
    module = LayerScaledPreNorm.Config(norm=NoNorm.Config(), scale_init=0.25).build(dim=4)
    x = jnp.asarray(random(1, 2, 4))
    found, _ = functional(module, module.init(0), x, lambda normed: 2 * normed)
    np.testing.assert_allclose(found, 1.5 * x, rtol=1e-6)


@pytest.mark.parametrize("is_antialiased", [False, True])
@pytest.mark.parametrize("new", [5, 12, 30])
def test_interpolation_leaves_a_slope_as_it_is_but_at_the_ends(new, is_antialiased):
    weights = bicubic_weights(12, new, is_antialiased=is_antialiased)
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-5)
    wanted = (np.arange(new) + 0.5) * 12 / new - 0.5
    inside = (wanted > 5) & (wanted < 7)
    assert inside.any()
    np.testing.assert_allclose((weights @ np.arange(12))[inside], wanted[inside], atol=0.11)
    if new == 12:
        np.testing.assert_allclose(weights, np.eye(12), atol=1e-6)


def test_pictures_of_another_size_have_other_positions_and_the_same_weights(call):
    small = update_config(CLASSIFIER, {"encoder.height": 8, "encoder.width": 24})
    state = CLASSIFIER.build().init(0)
    model = small.build()
    assert model.encoder.num_tokens == 3 + 2 * 6
    found = call(model, state, PIXELS[:, :8].repeat(2, axis=2)[:, :, :24])
    assert found.shape == (3, 5)
    with pytest.raises(ConfigError, match="patches 4 x 4"):
        update_config(CLASSIFIER, {"encoder.height": 10}).build()


def test_a_picture_does_not_see_the_others_of_its_batch(call):
    model = CLASSIFIER.build()
    state = model.init(0)
    assert_same_to_rounding(call(model, state, PIXELS)[:1], call(model, state, PIXELS[:1]))


def test_half_precision_gives_about_the_same(call):
    half = evolve(CLASSIFIER, dtypes=DTypes(compute="bfloat16")).build()
    state = half.init(0)
    found = call(half, state, PIXELS)
    assert found.dtype == jnp.bfloat16
    wanted = call(CLASSIFIER.build(), state, PIXELS)
    np.testing.assert_allclose(found.astype(np.float32), wanted, atol=0.05 * np.abs(wanted).max())


@pytest.mark.parametrize("registers", [0, 2])
@pytest.mark.parametrize("has_head", [False, True])
def test_what_is_written_is_read_again_with_pictures_of_any_size(tmp_path, registers, has_head):
    options = {**SIZES, "num_registers": registers}
    cfg = (
        dinov2_classifier("toy", num_classes=5, **options) if has_head else dinov2("toy", **options)
    )
    state = jax.tree.map(jnp.asarray, numpy_state(cfg.build().param_specs()))
    other = update_config(cfg, {"encoder.height": 24, "encoder.width": 8})
    name = to_hugging_face(tmp_path / "written", other, state)
    assert name == ("dinov2_with_registers" if registers else "dinov2")
    found = from_hugging_face(tmp_path / "written")
    assert found.config.encoder == cfg.encoder
    jax.tree.map(np.testing.assert_array_equal, found.state, state)


def test_a_classifier_begins_with_a_pretrained_encoder(tmp_path):
    source = dinov2("toy", num_registers=2, **SIZES)
    state = jax.tree.map(jnp.asarray, numpy_state(source.build().param_specs()))
    to_hugging_face(tmp_path / "source", source, state)
    cfg = update_config(CLASSIFIER, {"encoder.height": 8, "encoder.width": 8})
    wanted = jax.tree.map(
        lambda spec: spec.abstract,
        cfg.build().param_specs(),
        is_leaf=lambda one: hasattr(one, "abstract"),
    )
    edited = HuggingFace.Config(path=str(tmp_path / "source"), edits=(EncoderAlone(),)).build()
    found = edited.plan(cfg).read(wanted)
    jax.tree.map(np.testing.assert_array_equal, found["encoder"], state["encoder"])
    assert found["head"]["weight"].shape == (128, 5)


def test_what_config_json_cannot_say_is_refused():
    fields = DINOV2.write(dinov2("toy", **SIZES))
    with pytest.raises(ConfigError, match="as if pictures were square"):
        DINOV2.read({**fields, "image_size": [16, 24]})
    odd = update_config(dinov2("toy", **SIZES), {"**.hidden_dim": 100})
    with pytest.raises(ConfigError, match="hidden_dim is 100") as error:
        DINOV2.write(odd)
    assert "hidden_dim=256" in str(error.value)
    experts = update_config(
        dinov2("toy", **SIZES),
        {"encoder.stack.layer.feed_forward": MoE.Config(num_experts=2, top_k=1)},
    )
    with pytest.raises(ConfigError, match="the feed-forward is a MoE"):
        DINOV2.write(experts)
    with pytest.raises(ConfigError, match="a class token"):
        update_config(dinov2("toy"), {"encoder.num_first_tokens": 0}).build()


@pytest.mark.slow
def test_a_mesh_learns_the_same(tmp_path):
    changes = {
        "model.num_classes": 10,
        'data.features["image"].num_channels': 3,
        "data.batch_size": 16,
        "max_steps": 2,
        "eval_every_steps": 2,
    }
    cfg = update_config(evolve(digits(), model=CLASSIFIER), changes)
    one = trainer_on(cfg, 1).run(tmp_path / "one", quiet=True)
    mesh = update_config(cfg, {"mesh": {"data": 2, "fsdp": 2}})
    four = trainer_on(mesh, 4).run(tmp_path / "four", quiet=True)
    assert one.validation == pytest.approx(four.validation, rel=1e-4)
