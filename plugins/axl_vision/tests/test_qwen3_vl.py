"""Qwen3-VL: what is sent past the decoder's first layers, in training and in serving."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_attention.models import qwen3
from axl_vision.deep_tokens import AddDeepTokens, SendTokens, without_deep_tokens
from axl_vision.models import qwen3_vl, with_picture_size
from axl_vision.models.qwen3_vl import QWEN3_VL
from chat_tokenizer import write_chat_tokenizer

from axcore.config import evolve, update_config
from axcore.data import ByteTokenizer
from axcore.errors import ConfigError
from axcore.inference import EncoderInput, Engine, EngineConfig, NGramLookup, Request, Sampling
from axcore.interop import PretrainedCheckpoint, layers_of, to_hugging_face
from axcore.layers import FIRST_SOFT_TOKEN
from axcore.module import functional
from axcore.runs.export import trainer_config

TOKENIZER = ByteTokenizer.Config().build()
SIDE, COUNT = 64, 4
"""Pixels of a side of a picture, and its soft tokens."""


def small():
    text = update_config(qwen3("toy"), {"vocab_size": TOKENIZER.vocab_size})
    cfg = qwen3_vl(text, "toy", image_size=(SIDE, SIDE))
    return update_config(cfg, {"**.sections": (8, 4, 4)})


CFG = small()
MODEL = CFG.build()
STATE = jax.tree.map(lambda x: 3 * x, MODEL.init(3))
RANDOM = np.random.default_rng(1)
IMAGES = [RANDOM.integers(0, 255, (SIDE, SIDE, 3), np.uint8) for _ in range(3)]
LENGTH = 48


def soft(model, state, image):
    encoder = update_config(model.config.encoder, {"dim": model.config.dim}).build()
    return functional(encoder, state["encoder"], jnp.asarray(image)[None])[0]


def test_a_soft_token_has_a_vector_for_each_layer_that_adds_one():
    assert soft(MODEL, STATE, IMAGES[0]).shape == (1, COUNT, 3 * CFG.dim)
    assert CFG.encoder.num_deep == 2
    adds = [isinstance(one, AddDeepTokens.Config) for one in layers_of(CFG.decoder.stack)]
    assert adds == [False, True, False, True]


def test_what_is_added_changes_soft_tokens_alone():
    """Without the mergers of inner layers, tokens before the picture stay as they were."""
    tokens = jnp.asarray([[1, 2, *(FIRST_SOFT_TOKEN + i for i in range(COUNT)), 5]], jnp.int32)
    image = jnp.asarray(IMAGES[0])[None]
    still = {**STATE, "encoder": {**STATE["encoder"]}}
    still["encoder"]["deep"] = jax.tree.map(jnp.zeros_like, STATE["encoder"]["deep"])
    one, other = (
        functional(MODEL, state, tokens, inputs=image, method="logits")[0][0]
        for state in (STATE, still)
    )
    np.testing.assert_array_equal(one[:2], other[:2])
    assert jnp.all(jnp.abs(one[2:] - other[2:]).max(axis=-1) > 1e-3)


def test_a_picture_of_another_size_has_interpolated_positions():
    wide = with_picture_size(CFG, SIDE, 2 * SIDE).build()
    image = np.concatenate([IMAGES[0], IMAGES[1]], axis=1)
    assert wide.encoder.num_tokens == 2 * COUNT
    assert soft(wide, STATE, image).shape == (1, 2 * COUNT, 3 * CFG.dim)
    with pytest.raises(ConfigError, match="a soft token has 32"):
        with_picture_size(CFG, SIDE, 40).build()


def test_a_config_is_read_as_it_was_written():
    values = QWEN3_VL.write(CFG)
    assert values["vision_config.deepstack_visual_indexes"] == [0, 1]
    assert QWEN3_VL.normal(QWEN3_VL.read(values)) == QWEN3_VL.normal(CFG)
    plain = without_deep_tokens(CFG)
    assert not any(isinstance(one, AddDeepTokens.Config) for one in layers_of(plain.decoder.stack))
    sends = [isinstance(one, SendTokens.Config) for one in layers_of(CFG.encoder.stack)]
    assert sends == [False, True, False, True, False]


@pytest.mark.parametrize("numbers", [[1, 0], [3], []])
def test_numbers_of_other_layers_are_refused(numbers):
    values = {**QWEN3_VL.write(CFG), "vision_config.deepstack_visual_indexes": numbers}
    with pytest.raises(ConfigError, match="encoder"):
        QWEN3_VL.read(values)


def request(images, text):
    prompt, numbers = [256], iter(range(FIRST_SOFT_TOKEN, FIRST_SOFT_TOKEN + 100))
    for _ in images:
        prompt += [*(next(numbers) for _ in range(COUNT)), 65]
    return Request(
        prompt=(*prompt, *text),
        sampling=Sampling(temperature=0),
        inputs=tuple(EncoderInput(IMAGES[one]) for one in images),
        max_tokens=4,
        ignores_end=True,
        num_logprobs=0,
    )


@jax.jit
def logits(tokens, images, place):
    return functional(MODEL, STATE, tokens, None, place, inputs=images, method="logits")[0]


def plain(asked):
    """Return tokens and log-probabilities of passes over all of the text, padded to one length."""
    images = jnp.asarray([[*(one.value for one in asked.inputs), IMAGES[0]][:2]])
    text, logprobs = list(asked.prompt), []
    for _ in range(asked.max_tokens):
        row = jnp.asarray([text + [0] * (LENGTH - len(text))], jnp.int32)
        found = logits(row, images, jnp.asarray([[len(text) - 1]], jnp.int32))[0, 0]
        text.append(int(jnp.argmax(found)))
        logprobs.append(float(jax.nn.log_softmax(found)[text[-1]]))
    return text[len(asked.prompt) :], logprobs


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"page_size": None},
        {"speculation": NGramLookup(num_tokens=2)},
        {"num_decode_steps": 4},
    ],
)
@pytest.mark.slow
def test_served_answers_are_those_of_plain_passes(changes):
    """Also in pieces that end in a picture, and from the prefix cache: twice."""
    requests = [request([1, 2], b"long text"), request([0], b"abcdef")]
    cfg = {
        "max_num_seqs": 2,
        "max_length": LENGTH,
        "page_size": 4,
        "num_decode_steps": 1,
        "max_num_batched_tokens": 7,
        "batch_size_buckets": (2,),
        "sampler_kinds": ("greedy",),
        **changes,
    }
    with Engine(MODEL, STATE, TOKENIZER, EngineConfig(**cfg)) as engine:
        for _ in range(2):
            streams = [engine.submit(one) for one in requests]
            for asked, stream in zip(requests, streams, strict=True):
                tokens, logprobs = plain(asked)
                found = stream.result().tokens
                assert [token.id for token in found] == tokens
                np.testing.assert_allclose([t.logprob for t in found], logprobs, atol=2e-4)


QWEN_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for content in message.content %}{% if content.type == 'image' %}"
    "{{ '<|vision_start|><|image_pad|><|vision_end|>' }}{% else %}{{ content.text }}{% endif %}"
    "{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|image_pad|>", "<|vision_end|>")


def test_a_picture_in_a_chat_has_the_same_tokens_however_the_chat_is_written(tmp_path):
    cfg = update_config(CFG, {"vocab_size": 261})
    marks = ("vision_start_token_id", "image_token_id", "vision_end_token_id")
    fields = dict(zip(marks, range(258, 261), strict=True))
    to_hugging_face(tmp_path / "q", cfg, cfg.build().init(0), fields=fields)
    write_chat_tokenizer(tmp_path / "q", QWEN_TEMPLATE, special=SPECIAL, eos="<|im_end|>")
    feature = trainer_config(PretrainedCheckpoint(tmp_path / "q")).data.features["chat"]
    plain = evolve(feature, tokenizer=evolve(feature.tokenizer, template_texts={}))
    rows = []
    for asked in ([{"type": "image"}, {"type": "text", "text": "so?"}], "<|image_pad|>so?"):
        turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": "a"}]
        rows.append(feature.build().make({"messages": turns}, None)["tokens"].tolist())
        with pytest.raises(ValueError, match="writes another text of a content"):
            plain.build().make({"messages": turns}, None)
    assert rows[0] == rows[1]
    place = rows[0].index(258)
    assert rows[0][place + 1 : place + 6] == [*range(FIRST_SOFT_TOKEN, FIRST_SOFT_TOKEN + 4), 260]
