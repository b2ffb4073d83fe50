"""Qwen2.5-VL: windows of patches, sizes of pictures, and what a published folder serves."""

import attrs
import jax.numpy as jnp
import numpy as np
import pytest
from axl_vision.models import qwen2_5_vl, with_picture_size
from axl_vision.models.qwen2_5_vl import QWEN2_5_VL
from axl_vision.pictures import PictureSize
from axl_vision.windowed_tokens import WindowAttention, WindowedImageTokens
from chat_tokenizer import write_chat_tokenizer

from axcore.config import evolve, update_config
from axcore.errors import ConfigError
from axcore.inference import EncoderInput, EngineConfig, Request, Sampling
from axcore.interop import layers_of, to_hugging_face
from axcore.models import qwen2
from axcore.module import functional
from axcore.plugins import Hardware
from axcore.runs import engine_for, open_model

_PARTS = "message['content'] if part['type'] == '{}'"
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% for part in "
    + _PARTS.format("image")
    + " %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}{% endfor %}"
    "{% for part in " + _PARTS.format("text") + " %}{{ part['text'] }}{% endfor %}"
    "{{ '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ("<|im_start|>", "<|end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
VOCAB = 256 + len(SPECIAL)
SIDE = 112
"""Pixels of a window, of which the smallest picture is one."""


def small(*size):
    text = update_config(qwen2("toy"), {"vocab_size": VOCAB})
    cfg = qwen2_5_vl(text, "toy", image_size=size or (SIDE, SIDE))
    return update_config(cfg, {"**.position.sections": (2, 3, 3)})


def encode(cfg, image):
    model = evolve(cfg.encoder, dim=8).build()
    soft, _ = functional(model, model.init(0), image)
    return soft


def test_windows_do_not_see_each_other():
    """A change in one window changes no token of another, where all layers have windows."""
    cfg = small(SIDE, 2 * SIDE)
    near = layers_of(cfg.encoder.stack)[0]
    assert isinstance(near.attention, WindowAttention.Config)
    cfg = evolve(cfg, encoder=evolve(cfg.encoder, stack=near))
    image = np.zeros((1, SIDE, 2 * SIDE, 3), np.uint8)
    changed = image.copy()
    changed[:, :, SIDE:] = 255
    before, after = (encode(cfg, jnp.asarray(one)) for one in (image, changed))
    is_same = np.all(np.asarray(before == after), axis=-1).reshape(4, 8)
    assert is_same[:, :4].all()
    assert not is_same[:, 4:].any()


def test_tokens_are_row_by_row():
    cfg = small(SIDE, 2 * SIDE)
    image = np.zeros((1, SIDE, 2 * SIDE, 3), np.uint8)
    changed = image.copy()
    changed[:, 28:56, 140:168] = 255  # row 1, column 5
    before, after = (encode(cfg, jnp.asarray(one)) for one in (image, changed))
    assert jnp.argmax(jnp.abs(before - after).sum(-1)) == 8 + 5


def test_flops_count_what_windows_see():
    """Twice the patches: products and windows double, and what sees all of a picture grows more."""
    one, two = (evolve(small(SIDE, width).encoder, dim=8) for width in (SIDE, 2 * SIDE))
    wide = sum(not isinstance(at.attention, WindowAttention.Config) for at in layers_of(two.stack))
    more = two.build().flops_per_input - 2 * one.build().flops_per_input
    np.testing.assert_allclose(more, 12.0 * two.width * wide * (128**2 - 2 * 64**2), rtol=1e-9)


@pytest.mark.parametrize("size", [(100, 112), (112, 140)])
def test_a_size_that_windows_do_not_divide_is_refused(size):
    with pytest.raises(ConfigError, match="a window has 112 pixels") as error:
        small(*size).build()
    assert "(112, 112)" in str(error.value)


def test_windows_of_layers_are_those_of_the_encoder():
    with pytest.raises(ConfigError, match="windows of 16 patches"):
        update_config(small(), {"**.attention.num_tokens": 16}).build()


def test_a_size_is_written_where_it_is_not_the_usual_one():
    values = QWEN2_5_VL.write(small())
    assert values["vision_config.image_size"] == [SIDE, SIDE]
    assert QWEN2_5_VL.read(values).encoder.image_size == (SIDE, SIDE)
    assert "vision_config.image_size" not in QWEN2_5_VL.write(small(448, 448))


def test_layers_that_see_all_are_read_by_number():
    values = {**QWEN2_5_VL.write(small()), "vision_config.fullatt_block_indexes": [0, 2]}
    layers = layers_of(QWEN2_5_VL.read(values).encoder.stack)
    assert [isinstance(one.attention, WindowAttention.Config) for one in layers] == [
        False,
        True,
        False,
        True,
    ]
    with pytest.raises(ConfigError, match="the encoder has 4 layers"):
        QWEN2_5_VL.read({**values, "vision_config.fullatt_block_indexes": [4]})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen") / "model"
    model = small().build()
    to_hugging_face(folder, small(), model.init(0), fields={"image_token_id": VOCAB - 1})
    return write_chat_tokenizer(folder, TEMPLATE, special=SPECIAL)


def test_the_modifier_changes_model_and_data(folder):
    opened = open_model(folder)
    cfg = opened.trainer.config
    changed = PictureSize(height=SIDE, width=2 * SIDE).apply(cfg, Hardware.parse("cpu-1"))
    assert changed.data.features["image"].width == 2 * SIDE
    assert changed.data.features["chat"].num_soft_tokens == 32
    assert isinstance(changed.model.encoder, WindowedImageTokens.Config)
    assert changed.model == with_picture_size(cfg.model, SIDE, 2 * SIDE)
    text = attrs.evolve(cfg, model=qwen2("toy"))
    with pytest.raises(ConfigError, match="pictures have one size"):
        PictureSize().apply(text, Hardware.parse("cpu-1"))


@pytest.mark.slow
def test_a_published_folder_answers_as_a_plain_pass(folder):
    opened = open_model(folder)
    image = np.random.default_rng(0).integers(0, 255, (SIDE, SIDE, 3), np.uint8)
    soft = [1 << 24, *range((1 << 24) + 1, (1 << 24) + 16)]
    prompt = (256, 258, *soft, 259, *b"what is it?", 257)
    request = Request(
        prompt=prompt,
        max_tokens=4,
        sampling=Sampling(temperature=0),
        inputs=(EncoderInput(image),),
        ignores_end=True,
    )
    engine, _ = engine_for(opened, EngineConfig(max_num_seqs=2, max_length=64))
    with engine:
        found = [token.id for token in engine.submit(request).result().tokens]
    row = jnp.asarray([[*prompt, *found]], jnp.int32)
    logits, _ = functional(
        opened.model, opened.state, row, inputs=jnp.asarray(image)[None], method="logits"
    )
    assert jnp.argmax(logits[0, len(prompt) - 1 : -1], axis=-1).tolist() == found
