"""wav2vec 2.0, HuBERT and Conformers: logits, CTC loss and gradients of transformers' own."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytestmark = pytest.mark.parity

SIZES = {
    "vocab_size": 12,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "conv_dim": (12, 12, 16),
    "conv_kernel": (10, 3, 2),
    "conv_stride": (5, 2, 2),
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
    "layer_norm_eps": 1e-4,
}
STABLE = {"do_stable_layer_norm": True, "feat_extract_norm": "layer", "conv_bias": True}
KERNEL = {"conv_depthwise_kernel_size": 5}
CASES = {
    "base": ("Wav2Vec2ForCTC", {}),
    "stable": ("Wav2Vec2ForCTC", STABLE),
    "odd kernel": ("Wav2Vec2ForCTC", {"num_conv_pos_embeddings": 7, "mask_time_prob": 0.0}),
    "hubert": ("HubertForCTC", {}),
    "stable hubert": ("HubertForCTC", STABLE),
    "relative": ("Wav2Vec2ConformerForCTC", {**KERNEL, **STABLE, "hidden_act": "swish"}),
    "rotary": (
        "Wav2Vec2ConformerForCTC",
        {**KERNEL, "position_embeddings_type": "rotary", "rotary_embedding_base": 500},
    ),
}
LENGTHS = (1990, 1203)
LABELS = ((3, 4, 4, 5, 11), (7, 3))


def make(name: str) -> Any:
    """Returns a model of transformers with random weights, none of them one or zero."""
    import torch
    import transformers

    torch.manual_seed(0)
    class_name, fields = CASES[name]
    model_class = getattr(transformers, class_name)
    fields = (
        {key: value for key, value in fields.items() if key != "do_stable_layer_norm"}
        if ("Conformer" in class_name)
        else fields
    )
    model = model_class(model_class.config_class(**{**SIZES, **fields}))
    for one in model.parameters():
        one.data += 0.1 * torch.randn_like(one)
    for key, one in model.named_buffers():
        if "running_" in key:
            one += 0.1 * torch.rand_like(one)
    return model.eval()


def sounds() -> list[np.ndarray]:
    draw = np.random.default_rng(0)
    return [draw.normal(0.3, 2.0, size=length).astype(np.float32) for length in LENGTHS]


def normalized(sound: np.ndarray) -> np.ndarray:
    """What transformers' feature extractor makes of a sound."""
    return (sound - sound.mean()) / np.sqrt(sound.var() + 1e-7)


def wanted_of(model: Any, sound: np.ndarray, labels: tuple[int, ...]) -> tuple[Any, Any]:
    import torch

    given = torch.tensor(normalized(sound))[None]
    found = model(given, labels=torch.tensor([labels]))
    return found.logits[0], found.loss


def batch() -> dict[str, Any]:
    rows = np.zeros((2, 2300), np.float32)
    text, mask = np.zeros((2, 7), np.int32), np.zeros((2, 7), bool)
    for row, (sound, labels) in enumerate(zip(sounds(), LABELS, strict=True)):
        rows[row, : len(sound)] = sound
        text[row, : len(labels)], mask[row, : len(labels)] = labels, True
    arrays = {"sound": rows, "sound_length": np.array(LENGTHS), "text": text, "text_mask": mask}
    return {name: jnp.asarray(one) for name, one in arrays.items()}


def by_published_names(path: Any) -> dict[str, np.ndarray]:
    """Tensors of a file as published files call them, without those that are never read."""
    from safetensors.numpy import load_file

    names = {"original0": "weight_g", "original1": "weight_v"}
    found = {}
    for key, value in load_file(path / "model.safetensors").items():
        before, _, last = key.rpartition(".")
        if last in names:
            key = before.removesuffix(".parametrizations.weight") + "." + names[last]
        found[key] = value
    if any("conv_module" in key for key in found):
        unread = ("pos_conv_embed", "inv_freq", "num_batches_tracked")
        found = {key: one for key, one in found.items() if not any(n in key for n in unread)}
    return found


@pytest.mark.parametrize("name", CASES)
def test_padded_rows_are_what_transformers_makes_of_each_alone(name, tmp_path):
    import torch

    from axcore.interop import from_hugging_face, to_hugging_face
    from axcore.module import functional
    from axcore.tasks import CTC

    hf = make(name)
    hf.save_pretrained(tmp_path / "hf")
    found = from_hugging_face(tmp_path / "hf")
    given = batch()
    (logits, is_real), _ = functional(
        found.model, found.state, given["sound"], given["sound_length"]
    )
    total = torch.zeros(())
    for row, (sound, labels) in enumerate(zip(sounds(), LABELS, strict=True)):
        wanted, loss = wanted_of(hf, sound, labels)
        assert int(is_real[row].sum()) == len(wanted)
        np.testing.assert_allclose(
            logits[row, : len(wanted)], wanted.detach().numpy(), rtol=2e-4, atol=5e-5
        )
        total = total + loss
    task = CTC.Config(blank=0).build(model=found.config)

    def loss_of(state: Any) -> Any:
        # Ours is a mean over labels.
        return functional(task, state, given)[1].total_loss() * sum(map(len, LABELS))

    value, gradient = jax.value_and_grad(loss_of)(found.state)
    assert float(value) == pytest.approx(float(total.detach()), rel=1e-5)
    total.backward()
    to_hugging_face(tmp_path / "gradients", found.config, gradient)
    for one in hf.parameters():
        one.data = torch.zeros_like(one) if one.grad is None else one.grad
    hf.save_pretrained(tmp_path / "wanted")
    written, own = (by_published_names(tmp_path / one) for one in ("gradients", "wanted"))
    assert written.keys() == own.keys()
    for key, wanted in own.items():
        if "running_" in key:  # no parameter
            continue
        # A bias of keys changes no logit, so its gradient is rounding alone.
        near = 5e-5 * float(np.abs(wanted).max()) + 1e-5
        np.testing.assert_allclose(written[key], wanted, rtol=2e-3, atol=near, err_msg=key)


@pytest.mark.parametrize("name", CASES)
def test_what_is_written_again_is_the_same_model(name, tmp_path):
    import torch

    from axcore.interop import from_hugging_face, to_hugging_face

    hf = make(name)
    hf.save_pretrained(tmp_path / "hf")
    found = from_hugging_face(tmp_path / "hf")
    to_hugging_face(tmp_path / "back", found.config, found.state)
    before, after = (by_published_names(tmp_path / one) for one in ("hf", "back"))
    assert before.keys() == after.keys()
    assert all((before[key] == after[key]).all() for key in before)
    back, said = type(hf).from_pretrained(tmp_path / "back", output_loading_info=True)
    unread = ("pos_conv_embed", "inv_freq", "num_batches_tracked")
    missing = [key for key in said["missing_keys"] if not any(one in key for one in unread)]
    assert not missing, missing
    assert not said["unexpected_keys"], said
    with torch.no_grad():
        one, other = (wanted_of(each, sounds()[0], LABELS[0])[0] for each in (hf, back.eval()))
    assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["stable", "stable hubert"])
def test_padded_rows_are_those_of_transformers_with_its_mask(name, tmp_path):
    import torch

    from axcore.interop import from_hugging_face
    from axcore.module import functional

    hf = make(name)
    hf.save_pretrained(tmp_path / "hf")
    found = from_hugging_face(tmp_path / "hf")
    rows = np.zeros((2, 2300), np.float32)
    mask = np.zeros((2, 2300), np.int64)
    for row, sound in enumerate(sounds()):
        rows[row, : len(sound)], mask[row, : len(sound)] = normalized(sound), 1
    with torch.no_grad():
        wanted = hf(torch.tensor(rows), attention_mask=torch.tensor(mask)).logits.numpy()
    given = batch()
    (logits, is_real), _ = functional(
        found.model, found.state, given["sound"], given["sound_length"]
    )
    assert logits.shape == wanted.shape
    real = np.asarray(is_real)
    np.testing.assert_allclose(np.asarray(logits)[real], wanted[real], rtol=2e-4, atol=5e-5)


@pytest.mark.parametrize(
    "class_name",
    [
        "Wav2Vec2ForPreTraining",
        "Wav2Vec2Model",
        "HubertModel",
        "Wav2Vec2ConformerForPreTraining",
        "Wav2Vec2ConformerModel",
    ],
)
def test_training_begins_with_a_checkpoint_of_pretraining(class_name, tmp_path):
    import transformers

    from axcore.errors import CheckpointError
    from axcore.interop import HuggingFace, PretrainedCheckpoint, from_hugging_face

    model_class = getattr(transformers, class_name)
    hf = model_class(model_class.config_class(**SIZES))
    hf.save_pretrained(tmp_path / "hf")
    with pytest.raises(CheckpointError, match="a base model without a head"):
        from_hugging_face(tmp_path / "hf")
    cfg = PretrainedCheckpoint(tmp_path / "hf").config
    specs = cfg.build().param_specs()
    wanted = jax.tree.map(lambda one: one.abstract, specs, is_leaf=lambda s: hasattr(s, "abstract"))
    source = HuggingFace.Config(path=str(tmp_path / "hf"), fresh=("head.**",)).build()
    state = source.plan(cfg).read(wanted)
    base = getattr(hf, hf.base_model_prefix, hf)
    kernel = base.feature_extractor.conv_layers[1].conv.weight.detach().numpy()
    np.testing.assert_array_equal(
        state["features"]["convolution"]["1"]["weight"], kernel.transpose(2, 1, 0)
    )


@pytest.mark.parametrize("is_lower", [False, True])
def test_texts_and_tokens_are_those_of_transformers(is_lower, tmp_path):
    import json

    import transformers

    from axcore.data import characters_in

    letters = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ETAONIHSRDLUMWCFGYPBVK'XJQZ"]
    (tmp_path / "vocab.json").write_text(json.dumps({one: i for i, one in enumerate(letters)}))
    hf = transformers.Wav2Vec2CTCTokenizer(str(tmp_path / "vocab.json"), do_lower_case=is_lower)
    hf.save_pretrained(tmp_path)
    tokenizer = characters_in(tmp_path).build()
    text = "it's a small step" if is_lower else "IT'S A SMALL STEP"
    tokens = tokenizer.encode(text).tolist()
    assert tokens == hf(text).input_ids
    assert (tokenizer.pad_id, tokenizer.separator_id) == (hf.pad_token_id, 4)
    frames = [0, 6, 6, 0, 5, 5, 0, 5, 4, 4, 0, 7, 0, 4, 0, 0, 8]
    kept = [one for i, one in enumerate(frames) if one and one != (frames[i - 1] if i else 0)]
    assert tokenizer.decode(kept).strip() == hf.decode(frames)
