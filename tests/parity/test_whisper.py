"""Whisper: features, logits and transcripts equal those of transformers, weights both ways."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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


def logits_of(loaded, frames, tokens):
    from axl_audio.features import Features

    features = Features(jnp.asarray(frames), jnp.ones(frames.shape[:2], bool))
    module = loaded.model.build()
    found, _ = functional(module, loaded.state, features, jnp.asarray(tokens), method="logits")
    return np.asarray(found)


def test_logits_equal_those_of_transformers(whisper):
    import torch

    model, folder = whisper
    frames, tokens = inputs()
    with torch.no_grad():
        wanted = model(
            input_features=torch.from_numpy(frames.swapaxes(1, 2).copy()),
            decoder_input_ids=torch.from_numpy(tokens),
        ).logits.numpy()
    np.testing.assert_allclose(
        logits_of(from_hugging_face(folder), frames, tokens), wanted, atol=1e-4
    )
