"""Conformer layers: distances, the variant by name, and equal losses on a mesh."""

import jax.numpy as jnp
import numpy as np
import pytest
import soundfile
from axl_audio.conformer import (
    ConformerLayer,
    ConvolutionModule,
    RelativeAttention,
    conformer,
    distances,
)
from axl_audio.encoder import CTCModel, SpeechEncoder, Subsampling
from axl_audio.experiments import spoken_digits
from axl_audio.features import LogMel
from axl_audio.models import wav2vec2, wav2vec2_conformer
from axl_audio.sound import Audio
from compiled_call import call_compiled

from axcore.config import find_config, replace_config, update_config
from axcore.data import ExampleData, SampleFiles, Text
from axcore.errors import ConfigError
from axcore.layers import (
    PostNorm,
    ScannedLayers,
    TransformerLayer,
    encoder_layer,
    whole_rows,
)
from axcore.learner import ConstantSchedule, Learner
from axcore.modifiers import with_changes
from axcore.plugins import Hardware
from axcore.tasks import CTC
from axcore.testing.tiny import trainer_on
from axcore.trainer import Trainer


def test_distances_are_sinusoids_of_how_far_a_key_is_before_the_query():
    table = distances(3, 4)
    assert table.shape == (5, 4)
    for row, place in enumerate((2, 1, 0, -1, -2)):
        slow = place / 100
        wanted = [np.sin(place), np.cos(place), np.sin(slow), np.cos(slow)]
        np.testing.assert_allclose(table[row], wanted, atol=1e-6)


def test_relative_attention_is_the_formula():
    module = RelativeAttention.Config(num_heads=2).build(dim=8)
    state = module.init(0)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 5, 8)), jnp.float32)
    q, k, v = (np.reshape(x[0] @ state[one]["weight"], (5, 2, 4)) for one in "qkv")
    p = np.reshape(distances(5, 8) @ state["distance"]["weight"], (9, 2, 4))
    u, w = state["content_bias"], state["distance_bias"]
    mixed = np.zeros((5, 2, 4))
    for head in range(2):
        for i in range(5):
            scores = [
                ((q[i, head] + u[head]) @ k[j, head] + (q[i, head] + w[head]) @ p[4 - i + j, head])
                for j in range(5)
            ]
            weights = np.exp(np.array(scores) / 2)
            mixed[i, head] = weights / weights.sum() @ v[:, head]
    wanted = mixed.reshape(5, 8) @ state["out"]["weight"]
    np.testing.assert_allclose(call_compiled(module, state, x, whole_rows(x))[0], wanted, atol=1e-5)


def test_what_a_conformer_cannot_be_is_named():
    with pytest.raises(ConfigError, match="kernel_size is 4, which has no middle") as error:
        ConvolutionModule.Config(kernel_size=4).build(dim=8)
    assert "kernel_size=5" in str(error.value)
    behind = update_config(
        encoder_layer(num_heads=2, hidden_dim=8), {"residual": PostNorm.Config()}
    )
    with pytest.raises(ConfigError, match="the layer's residual is a PostNorm"):
        conformer(behind)
    with pytest.raises(ConfigError, match="position is 'sinusoid'"):
        wav2vec2_conformer("toy", position="sinusoid")


def test_the_digits_experiment_takes_the_layer_by_name():
    cfg = with_changes(spoken_digits(), ["conformer"], Hardware.parse("cpu-1"))
    by_hand = replace_config(spoken_digits(), TransformerLayer, conformer)
    assert cfg.model == by_hand.model
    layer = find_config(cfg, lambda node: isinstance(node, ConformerLayer.Config))
    assert layer is not None
    cfg.model.build()


MODELS = {
    "wav2vec2": wav2vec2("toy", vocab_size=264),
    "conformer": CTCModel.Config(
        vocab_size=264,
        features=LogMel.Config(num_bands=20),
        encoder=SpeechEncoder.Config(
            dim=16,
            subsampling=Subsampling.Config(strides=(2, 2)),
            stack=ScannedLayers.Config(
                num_layers=2, layer=conformer(encoder_layer(num_heads=2, hidden_dim=16))
            ),
        ),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_mesh_learns_the_same(name, tmp_path, monkeypatch):
    monkeypatch.setenv("AXCORE_DATA_CACHE", str(tmp_path / "cache"))
    draw = np.random.default_rng(0)
    (tmp_path / "sounds").mkdir()
    for number in range(12):
        sound = 0.1 * draw.normal(size=3000 + 300 * number)
        soundfile.write(tmp_path / "sounds" / f"{number}.wav", sound, 16_000)
        (tmp_path / "sounds" / f"{number}.txt").write_text("ab c"[: 1 + number % 4])
    cfg = Trainer.Config(
        model=MODELS[name],
        task=CTC.Config(),
        data=ExampleData.Config(
            source=SampleFiles.Config(folder=str(tmp_path / "sounds"), glob="*.wav"),
            features={"sound": Audio.Config(max_seconds=0.5), "text": Text.Config(length=6)},
            validation_fraction=0.3,
            batch_size=8,
        ),
        learner=Learner.Config(schedule=ConstantSchedule.Config(peak=1e-3)),
        max_steps=2,
        eval_every_steps=2,
    )
    one = trainer_on(cfg, 1).run(tmp_path / "one", quiet=True)
    mesh = update_config(cfg, {"mesh": {"data": 2, "fsdp": 2}})
    four = trainer_on(mesh, 4).run(tmp_path / "four", quiet=True)
    assert one.validation == pytest.approx(four.validation, rel=1e-3)
