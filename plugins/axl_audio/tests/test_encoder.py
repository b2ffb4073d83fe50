"""Speech encoders and models: padding changes no number, and every family trains."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_audio.encoder import CTCModel, SpeechEncoder, Subsampling, sinusoids
from axl_audio.features import LogMel
from axl_audio.models import whisper

from axcore.data import ByteTokenizer
from axcore.layers import ScannedLayers, encoder_layer
from axcore.module import ArraySpec, BatchSpec, functional
from axcore.tasks import CTC

LENGTHS = (3300, 1601)
MODEL = CTCModel.Config(
    vocab_size=264,
    features=LogMel.Config(num_bands=20),
    encoder=SpeechEncoder.Config(
        dim=16,
        subsampling=Subsampling.Config(strides=(2, 2)),
        stack=ScannedLayers.Config(num_layers=2, layer=encoder_layer(num_heads=2, hidden_dim=16)),
    ),
)


def batch_of(size, text_size=6):
    draw = np.random.default_rng(0)
    sound = np.zeros((2, size), np.float32)
    for row, length in zip(sound, LENGTHS, strict=True):
        row[:length] = draw.normal(size=length)
    text, mask = np.full((2, text_size), 258, np.int32), np.zeros((2, text_size), bool)
    for row, one in enumerate(("ab", "c")):
        text[row, : len(one)], mask[row, : len(one)] = list(one.encode()), True
    arrays = {"sound": sound, "sound_length": np.array(LENGTHS), "text": text, "text_mask": mask}
    return {name: jnp.asarray(one) for name, one in arrays.items()}


@pytest.mark.parametrize("strides", [(2, 2), (1, 2), (3,)])
def test_tokens_do_not_depend_on_the_number_of_frames(strides):
    module = Subsampling.Config(strides=strides).build(in_dim=4, dim=8)
    state = module.init(0)
    frames = jnp.asarray(np.random.default_rng(0).normal(size=(1, 40, 4)), jnp.float32)
    wanted = None
    for size in (20, 21, 22, 23, 39):
        is_real = jnp.arange(size)[None] < 19
        (tokens, is_token), _ = functional(module, state, (frames[:, :size], is_real))
        assert tokens.shape[1] == module.config.num_tokens(size)
        found = np.asarray(tokens)[np.asarray(is_token)]
        wanted = found if wanted is None else wanted
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_padding_changes_no_logit_of_a_real_frame():
    module = MODEL.build()
    state = module.init(0)
    found = []
    for size in (3300, 3400, 8000):
        batch = batch_of(size)
        (logits, is_real), _ = functional(module, state, batch["sound"], batch["sound_length"])
        found.append(np.asarray(logits)[np.asarray(is_real)])
    for one in found[1:]:
        np.testing.assert_allclose(one, found[0], atol=1e-4)


@pytest.mark.slow
def test_padding_changes_no_loss_and_no_gradient_of_ctc():
    module = CTC.Config().build(model=MODEL)
    state = module.init(0)

    def total(state, batch):
        return functional(module, state, batch)[1].total_loss()

    results = [jax.value_and_grad(total)(state, batch_of(*sizes)) for sizes in ((3400,), (9000, 9))]
    assert float(results[0][0]) == pytest.approx(float(results[1][0]), rel=1e-4)
    for one, other in zip(*(jax.tree.leaves(result[1]) for result in results), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3 * max(1e-2, np.abs(one).max()))


def test_sinusoids_are_those_of_the_paper():
    table = sinusoids(50, 8)
    for place in (0, 1, 49):
        for i in range(4):
            angle = place * 10_000 ** (-i / 3)
            np.testing.assert_allclose(
                table[place, [i, i + 4]], [np.sin(angle), np.cos(angle)], atol=1e-5
            )


@pytest.mark.slow
def test_whisper_learns_what_two_sounds_say():
    module = whisper("toy").build()
    state = module.init(0)
    batch = batch_of(9600, text_size=5)
    tokenizer = ByteTokenizer.Config().build()
    for row, one in enumerate(("ab", "c")):
        framed = tokenizer.framed(tokenizer.encode(one))
        batch["text"] = batch["text"].at[row, : len(framed)].set(framed)
        batch["text_mask"] = batch["text_mask"].at[row, : len(framed)].set(True)

    def total(state):
        return functional(module, state, batch)[1].total_loss()

    step = jax.jit(lambda s: jax.tree.map(lambda p, g: p - 0.1 * g, s, jax.grad(total)(s)))
    for _ in range(60):
        state = step(state)
    prompt = jnp.full((2, 1), tokenizer.bos_id, jnp.int32)
    heard = batch["sound"], batch["sound_length"]
    (tokens, is_text), _ = functional(
        module, state, *heard, prompt, 4, tokenizer.eos_id, method="transcribe"
    )
    rows = zip(np.asarray(tokens), np.asarray(is_text), strict=True)
    assert [tokenizer.decode(row[mask]) for row, mask in rows] == ["ab", "c"]


def test_flops_of_a_whisper_are_those_of_its_products():
    model = whisper("large-v3").build()
    arrays = {
        "sound": ArraySpec(shape=(1, 480_000), axes=("batch", None), dtype="float32"),
        "text": ArraySpec(shape=(1, 448), axes=("batch", None), dtype="int32"),
    }
    found = model.flops_per_unit(BatchSpec(arrays=arrays, unit="row", num_units=1)).per_unit
    d, source, target, layers = 1280, 1500, 447, 32
    encoder = layers * (12 * d * d * source + 2 * source * source * d)
    own = 12 * d * d * target + target * target * d
    cross = 2 * d * d * (target + source) + 2 * target * source * d
    wanted = 6 * (encoder + layers * (own + cross) + 51_866 * d * target)
    assert found == pytest.approx(wanted, rel=0.01)
