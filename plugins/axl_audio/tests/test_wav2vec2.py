"""wav2vec 2.0 and Conformers: padding changes nothing, and a folder is converted and served."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import soundfile
from axl_audio.decoding import SoundJob
from axl_audio.features import LogMel
from axl_audio.models import wav2vec2, wav2vec2_conformer
from axl_audio.models.conformer import WAV2VEC2_CONFORMER
from axl_audio.models.wav2vec2 import HUBERT, WAV2VEC2
from axl_audio.transcribe import command
from axl_audio.waveform import ConvolutionalPositions, WaveformFeatures
from click.testing import CliRunner

from axcore.config import evolve, update_config
from axcore.errors import ConfigError, ModuleError
from axcore.interop import from_hugging_face, to_hugging_face
from axcore.layers import encoder_layer
from axcore.module import DTypes, count_params, functional
from axcore.runs import export_run, import_run
from axcore.serving.config import ServerConfig
from axcore.serving.model_apis import find_model_api, start_model_api
from axcore.tasks import CTC

VOCABULARY = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, "|": 4, "A": 5, "B": 6, "C": 7}
STABLE = update_config(
    wav2vec2("large-lv60", vocab_size=8),
    {
        "encoder.dim": 32,
        "**.num_layers": 2,
        "**.attention.num_heads": 2,
        "**.hidden_dim": 48,
        "features.dims": (16,) * 7,
        "encoder.positions": ConvolutionalPositions.Config(kernel_size=7, num_groups=4),
    },
)
MODELS = {
    "base": wav2vec2("toy", vocab_size=8),
    "stable": STABLE,
    "relative": wav2vec2_conformer("toy", vocab_size=8),
    "rotary": wav2vec2_conformer("toy", vocab_size=8, position="rotary"),
}
LENGTHS = (4001, 2600)


def batch_of(size):
    draw = np.random.default_rng(0)
    sound = np.zeros((2, size), np.float32)
    for row, length in zip(sound, LENGTHS, strict=True):
        row[:length] = draw.normal(0.2, 0.5, size=length)
    text, mask = np.array([[5, 6, 4, 5], [7, 0, 0, 0]], np.int32), np.array([[1] * 4, [1, 0, 0, 0]])
    arrays = {"sound": sound, "sound_length": np.array(LENGTHS), "text": text}
    return {name: jnp.asarray(one) for name, one in {**arrays, "text_mask": mask > 0}.items()}


@pytest.mark.parametrize(
    ("cfg", "count"),
    [
        (wav2vec2("base"), 94_396_320),
        (wav2vec2("large"), 315_461_792),
        (wav2vec2("large-lv60"), 315_471_520),
    ],
    ids=["base", "large", "large-lv60"],
)
def test_pretrained_checkpoints_have_as_many_parameters(cfg, count):
    assert count_params(cfg.build().param_specs()) == count


def test_frames_are_of_real_samples_alone():
    cfg = WaveformFeatures.Config(dims=(4,) * 7)
    assert (cfg.window, cfg.step) == (400, 320)
    assert [cfg.num_frames(size) for size in (399, 400, 719, 720, 16_000)] == [0, 1, 1, 2, 49]
    module = cfg.build()
    sound, length = jnp.ones((3, 1200)), jnp.array([1200, 720, 300])
    features, _ = functional(module, module.init(0), sound, length)
    assert features.is_real.sum(1).tolist() == [3, 2, 0]
    assert bool(jnp.isfinite(features.frames).all())
    with pytest.raises(ModuleError, match="100 samples, and a frame is of 400"):
        functional(module, module.init(0), sound[:, :100], length)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_padding_changes_no_logit_of_a_real_frame(name):
    module = MODELS[name].build()
    state = module.init(0)
    found = []
    for size in (4001, 4200, 9000):
        batch = batch_of(size)
        (logits, is_real), _ = functional(module, state, batch["sound"], batch["sound_length"])
        found.append(np.asarray(logits)[np.asarray(is_real)])
    assert np.abs(found[0]).max() > 0.1
    for one in found[1:]:
        np.testing.assert_allclose(one, found[0], atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_padding_changes_no_loss_gradient_or_statistic_in_training(name):
    module = CTC.Config().build(model=MODELS[name])
    state = module.init(0)

    def total(state, batch):
        outputs = functional(module, state, batch, rng=jax.random.key(0), training=True)[1]
        return outputs.total_loss(), outputs.updates

    results = [
        jax.value_and_grad(total, has_aux=True)(state, batch_of(size)) for size in (4001, 9000)
    ]
    for one, other in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3 * max(1e-2, np.abs(one).max()))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_half_precision_gives_about_the_same(name):
    cfg = MODELS[name]
    state, batch = cfg.build().init(0), batch_of(4001)
    inputs = batch["sound"], batch["sound_length"]
    (wanted, is_real), _ = functional(cfg.build(), state, *inputs)
    half = evolve(cfg, dtypes=DTypes(compute="bfloat16")).build()
    found = functional(half, state, *inputs)[0][0]
    assert found.dtype == jnp.bfloat16
    error = jnp.abs(jnp.where(is_real[..., None], found.astype(jnp.float32) - wanted, 0))
    assert float(error.max()) < 0.1 * float(jnp.abs(wanted).max())


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_it_learns_what_two_sounds_say(name):
    module = CTC.Config().build(model=MODELS[name])
    batch = batch_of(4001)

    def total(state):
        outputs = functional(module, state, batch, rng=jax.random.key(0), training=True)[1]
        return outputs.total_loss()

    step = jax.jit(
        lambda s: jax.tree.map(lambda p, g: p - 0.1 * jnp.sign(g) * 0.02, s, jax.grad(total)(s))
    )
    state = module.init(0)
    first = float(total(state))
    for _ in range(30):
        state = step(state)
    assert float(total(state)) < 0.5 * first


def test_stretches_of_tokens_are_hidden_in_training_alone():
    cfg = update_config(MODELS["base"], {"encoder.subsampling.num_time_masks": 2})
    state, batch = cfg.build().init(0), batch_of(4001)
    inputs = batch["sound"], batch["sound_length"]
    plain = functional(MODELS["base"].build(), state, *inputs)[0][0]
    module = cfg.build()
    np.testing.assert_array_equal(functional(module, state, *inputs)[0][0], plain)
    hidden = functional(module, state, *inputs, rng=jax.random.key(1), training=True)[0][0]
    assert not np.allclose(hidden, plain, atol=1e-3)
    with pytest.raises(ConfigError, match="there is no vector for hidden tokens"):
        update_config(cfg, {"encoder.subsampling.has_mask_vector": False}).build()


@pytest.mark.parametrize("name", MODELS)
def test_what_is_written_is_read_again(name, tmp_path):
    cfg = MODELS[name]
    state = cfg.build().init(3)
    wanted = "wav2vec2" if name in ("base", "stable") else "wav2vec2-conformer"
    assert to_hugging_face(tmp_path / "written", cfg, state) == wanted
    found = from_hugging_face(tmp_path / "written")
    assert evolve(found.config, published=None, dtypes=cfg.dtypes) == cfg
    jax.tree.map(np.testing.assert_array_equal, found.state, state)


@pytest.mark.parametrize(
    ("family", "field", "value"),
    [
        (WAV2VEC2, "add_adapter", True),
        (WAV2VEC2, "adapter_attn_dim", 16),
        (WAV2VEC2, "output_hidden_size", 7),
        (HUBERT, "conv_pos_batch_norm", True),
        (HUBERT, "feat_proj_layer_norm", False),
        (WAV2VEC2_CONFORMER, "position_embeddings_type", None),
    ],
)
def test_another_model_is_refused_by_name(family, field, value):
    cfg = family.template()
    values = family.write(cfg) if family is not HUBERT else WAV2VEC2.write(cfg)
    with pytest.raises(ConfigError) as caught:
        family.read({**values, field: value})
    assert caught.value.where == field


def test_a_model_that_transformers_lacks_is_not_written(tmp_path):
    relative = MODELS["relative"]
    plain = update_config(
        relative,
        {"encoder.stack.layer.attention": encoder_layer(num_heads=2, hidden_dim=8).attention},
    )
    for cfg in (plain, evolve(relative, features=LogMel.Config())):
        with pytest.raises(ConfigError, match="no family of pretrained checkpoints"):
            to_hugging_face(tmp_path / "new", cfg, cfg.build().init(0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint as transformers has it, and a sound."""
    folder = tmp_path_factory.mktemp("ctc") / "toy"
    cfg = MODELS["base"]
    files = {"vocab.json": json.dumps(VOCABULARY).encode()}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    to_hugging_face(folder, cfg, cfg.build().init(1), fields=tokens, files=files)
    noise = np.random.default_rng(0).normal(size=8000).astype(np.float32)
    soundfile.write(folder.parent / "one.wav", 0.1 * noise, 16_000)
    return folder


@pytest.mark.slow
def test_a_folder_becomes_a_run_that_transcribes_and_is_written_again(folder, tmp_path):
    run = import_run(folder, tmp_path / "run")
    task = run.trainer.config.task
    assert (task.blank, task.separator) == (0, 4)
    sound = str(folder.parent / "one.wav")
    said = CliRunner().invoke(command, [str(tmp_path / "run"), sound])
    assert said.exit_code == 0, said.output
    text = said.output.split(": ", 1)[1].strip()
    assert text
    assert {*text} <= {*"ABC "}
    assert export_run(run, tmp_path / "back") == "a model of type wav2vec2"
    assert json.loads((tmp_path / "back" / "vocab.json").read_text()) == VOCABULARY
    settings = json.loads((tmp_path / "back" / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "Wav2Vec2CTCTokenizer"


@pytest.mark.slow
def test_a_folder_is_served(folder, monkeypatch):
    monkeypatch.setattr("axl_audio.serving.MAX_SECONDS", 1.0)
    api = find_model_api(folder)
    assert api.name == "transcriptions"
    served, _ = start_model_api(api, folder, ServerConfig())
    (endpoint,) = served.endpoints
    transcriber = endpoint._transcriber
    sound, _ = soundfile.read(folder.parent / "one.wav", dtype="float32")
    (one,) = transcriber.transcribe(served.state, [SoundJob(samples=sound)])
    assert one.text
    assert one.words
    assert all(0 <= word.start <= word.end <= 0.5 for word in one.words)
