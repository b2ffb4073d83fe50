"""Whisper: features, logits and transcripts equal those of transformers, weights both ways."""

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from axcore.interop import from_hugging_face, to_hugging_face
from axcore.module import functional

pytestmark = pytest.mark.parity

SIZES = {
    "vocab_size": 264,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "max_source_positions": 30,
    "max_target_positions": 20,
    "pad_token_id": 258,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "decoder_start_token_id": 256,
}


def tone(seconds, rate=16_000):
    """A chord that fades, and noise."""
    times = np.arange(round(seconds * rate)) / rate
    chord = sum(np.sin(2 * np.pi * hz * times) for hz in (220, 1500, 6100))
    noise = np.random.default_rng(0).standard_normal(len(times))
    return (0.2 * chord * np.exp(-times) + 0.01 * noise).astype(np.float32)


@pytest.mark.parametrize("num_bands", [80, 128])
def test_features_equal_those_of_transformers(num_bands):
    transformers = pytest.importorskip("transformers", reason="run make parity")
    from axl_audio.features import WhisperLogMel

    sounds = [tone(2.5), tone(30.0), np.zeros(16_000, np.float32)]
    extract = transformers.WhisperFeatureExtractor(feature_size=num_bands)
    wanted = extract(sounds, sampling_rate=16_000, return_tensors="np").input_features
    padded = np.stack([np.pad(one, (0, 480_000 - len(one))) for one in sounds])
    module = WhisperLogMel.Config(num_bands=num_bands).build()
    lengths = jnp.array([len(one) for one in sounds])
    found, _ = functional(module, {}, jnp.asarray(padded), lengths)
    np.testing.assert_allclose(found.frames, wanted.swapaxes(1, 2), atol=2e-4)
    assert np.abs(np.asarray(found.frames) - wanted.swapaxes(1, 2)).mean() < 1e-6
    assert found.is_real.sum(1).tolist() == [250, 3000, 100]


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    transformers = pytest.importorskip("transformers", reason="run make parity")
    import torch

    torch.manual_seed(0)
    cfg = transformers.WhisperConfig(**SIZES)
    model = transformers.WhisperForConditionalGeneration(cfg).float().eval()
    with torch.no_grad():
        for param in model.parameters():  # norms and biases are one and zero at first
            param.add_(0.1 * torch.randn_like(param))
    folder = tmp_path_factory.mktemp("whisper") / "whisper"
    model.save_pretrained(folder)
    return model, folder


def inputs():
    draw = np.random.default_rng(1)
    frames = draw.normal(size=(2, 60, 80)).astype(np.float32)
    return frames, draw.integers(0, 256, (2, 12))


def logits_of(read, frames, tokens):
    from axl_audio.features import Features

    features = Features(jnp.asarray(frames), jnp.ones(frames.shape[:2], bool))
    found, _ = functional(read.model, read.state, features, jnp.asarray(tokens), method="logits")
    return np.asarray(found)


def their_logits(model, frames, tokens):
    import torch

    with torch.no_grad():
        features = torch.from_numpy(frames.swapaxes(1, 2).copy())
        found = model(input_features=features, decoder_input_ids=torch.from_numpy(tokens))
    return found.logits.numpy()


def test_logits_equal_those_of_transformers(whisper):
    model, folder = whisper
    wanted = their_logits(model, *inputs())
    assert np.abs(wanted).max() > 1
    found = logits_of(from_hugging_face(folder), *inputs())
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_what_is_written_again_is_the_same_file(whisper, tmp_path):
    _, folder = whisper
    read = from_hugging_face(folder)
    to_hugging_face(tmp_path / "again", read.model.config, read.state)
    before, after = (load_file(one / "model.safetensors") for one in (folder, tmp_path / "again"))
    assert before.keys() == after.keys()
    assert all((before[name] == after[name]).all() for name in before)


def test_transformers_reads_what_was_trained_here(tmp_path):
    transformers = pytest.importorskip("transformers", reason="run make parity")
    from axl_audio.models import whisper

    cfg = whisper("toy")
    module = cfg.build()
    tokens = {"bos_token_id": 256, "eos_token_id": 257, "pad_token_id": 258}
    to_hugging_face(tmp_path / "new", cfg, module.init(0), fields=tokens)
    model, said = transformers.WhisperForConditionalGeneration.from_pretrained(
        tmp_path / "new", output_loading_info=True, attn_implementation="eager"
    )
    assert not any(said.values()), said
    read = from_hugging_face(tmp_path / "new")
    found = logits_of(read, *inputs())
    np.testing.assert_allclose(found, their_logits(model.eval(), *inputs()), atol=1e-4)


def test_greedy_transcripts_equal_those_of_transformers(whisper):
    import torch

    model, folder = whisper
    read = from_hugging_face(folder)
    sound = jnp.asarray(np.stack([tone(0.6), tone(0.6)[::-1]]))
    lengths, prompt = jnp.array([9600, 9600]), jnp.full((2, 1), 256)
    found, is_text = functional(
        read.model, read.state, sound, lengths, prompt, 12, 257, method="transcribe"
    )[0]
    features = functional(read.model.features, {}, sound, lengths)[0].frames
    with torch.no_grad():
        wanted = model.generate(
            torch.from_numpy(np.asarray(features).swapaxes(1, 2).copy()),
            max_new_tokens=12,
            suppress_tokens=None,
            begin_suppress_tokens=None,
            forced_decoder_ids=None,
            do_sample=False,
        ).numpy()
    for row in range(2):
        count = int(is_text[row].sum())
        assert count
        said = wanted[row][wanted[row] != 256][:count]
        assert np.asarray(found)[row, :count].tolist() == said.tolist()
