"""Voxtral: logits, gradients and greedy answers of transformers' own, and weights both ways."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.interop import from_hugging_face, to_hugging_face
from axcore.module import functional

pytestmark = pytest.mark.parity

AUDIO = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "num_mel_bins": 20,
    "max_source_positions": 24,
}
TEXT = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 40,
    "vocab_size": 99,
    "max_position_embeddings": 64,
}
NUM_SOFT, MARK, SAMPLES = 6, 98, 24 * 2 * 160
TOKENS = np.array([[1, *[MARK] * NUM_SOFT, 5, 6, 7], [1, 9, 8, *[MARK] * NUM_SOFT, 3]])
SOUNDS = 0.3 * np.random.default_rng(0).standard_normal((2, SAMPLES)).astype(np.float32)
SOUNDS[1, 3000:] = 0  # silence behind a short one


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A model of transformers with random weights, and what is read of its folder."""
    transformers = pytest.importorskip("transformers", reason="run make parity")
    import torch
    from picture_parity import shaken

    torch.manual_seed(0)
    cfg = transformers.VoxtralConfig(
        audio_config=AUDIO, text_config={"model_type": "llama", **TEXT}, audio_token_id=MARK
    )
    model = shaken(transformers.VoxtralForConditionalGeneration(cfg))
    folder = tmp_path_factory.mktemp("voxtral") / "hf"
    model.save_pretrained(folder)
    return model, from_hugging_face(folder), folder


def frames(read):
    """What the feature extractor of Whisper makes of the sounds, by our own, which equals it."""
    lengths = jnp.full(2, SAMPLES, jnp.int32)
    found = functional(read.model.encoder.features, {}, jnp.asarray(SOUNDS), lengths)[0].frames
    return np.asarray(found).swapaxes(1, 2).copy()


def rows():
    from picture_parity import soft_rows

    return soft_rows(TOKENS, MARK)


def logits(read, state):
    return functional(read.model, state, rows(), inputs=jnp.asarray(SOUNDS), method="logits")[0]


def their_logits(model, read):
    import torch

    features = torch.from_numpy(frames(read))
    return model(input_ids=torch.tensor(TOKENS), input_features=features).logits


def test_logits_and_gradients_are_those_of_transformers(pair, tmp_path):
    import torch

    model, read, _ = pair
    model.zero_grad()
    wanted = their_logits(model, read)
    own = jax.jit(lambda state: logits(read, state))(read.state)
    np.testing.assert_allclose(own, wanted.detach().numpy(), atol=2e-5)
    weights = np.random.default_rng(1).normal(size=wanted.shape).astype(np.float32)
    (wanted * torch.tensor(weights)).sum().backward()
    found = jax.jit(jax.grad(lambda state: jnp.sum(logits(read, state) * weights)))(read.state)
    # Gradients are arrays of the model's shapes, so both libraries can read them as weights.
    kept = {name: one.data.clone() for name, one in model.named_parameters()}
    for one in model.parameters():
        one.data = torch.zeros_like(one) if one.grad is None else one.grad.clone()
    model.save_pretrained(tmp_path / "gradients")
    for name, one in model.named_parameters():
        one.data = kept[name]
    expected = from_hugging_face(tmp_path / "gradients").state
    for (path, gradient), mine in zip(
        jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(found), strict=True
    ):
        if "positions" not in str(path):  # which transformers does not train
            allowed = 1e-4 * float(np.abs(gradient).max()) + 1e-6
            np.testing.assert_allclose(mine, gradient, atol=allowed, err_msg=str(path))


def test_what_is_written_again_gives_exactly_the_same_logits(pair, tmp_path):
    import torch

    model, read, _ = pair
    to_hugging_face(tmp_path / "back", read.config, read.state)
    back = type(model).from_pretrained(tmp_path / "back").eval()
    with torch.no_grad():
        assert (their_logits(back, read) == their_logits(model, read)).all()


def test_a_folder_of_the_published_form_is_read(pair, tmp_path):
    """Its `config.json` has the encoder's fields that say nothing, and leaves out defaults."""
    _, read, folder = pair
    fields = json.loads((folder / "config.json").read_text())
    fields["audio_config"] |= {"num_key_value_heads": 4, "head_dim": 8, "layerdrop": 0.0}
    for name in ("rms_norm_eps", "attention_bias", "mlp_bias"):
        fields["text_config"].pop(name, None)
    (tmp_path / "config.json").write_text(json.dumps(fields))
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    again = from_hugging_face(tmp_path)
    assert again.config.encoder == read.config.encoder
    norms = {one.epsilon for one in _norms(again.config.decoder)}
    assert norms == {1e-5}


def _norms(cfg):
    from axcore.config import find_config
    from axcore.layers import RMSNorm

    return [one.node for one in find_config(cfg, RMSNorm)]
