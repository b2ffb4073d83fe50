"""LLaVA: what a published folder says is what is read, written and served."""

import base64
import io

import jax.numpy as jnp
import numpy as np
import pytest
from axl_vision.models import llava
from axl_vision.models.llava import LLAVA
from chat_tokenizer import write_chat_tokenizer
from commands import call
from PIL import Image

from axcore.config import update_config
from axcore.errors import ConfigError
from axcore.inference import EngineConfig
from axcore.interop import from_hugging_face, to_hugging_face
from axcore.models import llama2
from axcore.runs import open_model
from axcore.serving.config import ServerConfig
from axcore.serving.inputs import ContentPart, marked
from axcore.serving.startup import start_engine

_CONTENT = "content in message['content'] | selectattr('type', 'equalto', '{}')"
TEMPLATE = (
    "{% for message in messages %}{{ message['role'].upper() + ': ' }}"
    "{% for " + _CONTENT.format("image") + " %}{{ '<image>\n' }}{% endfor %}"
    "{% for " + _CONTENT.format("text") + " %}{{ content['text'] }}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
"""As that of LLaVA 1.5: it reads parts of contents, and writes the mark of a picture itself."""

SPECIAL = ("<|turn|>", "<|end|>", "<image>")
VOCAB = 256 + len(SPECIAL)


def small():
    text = update_config(llama2("toy"), {"vocab_size": VOCAB})
    return llava(text, "toy", image_size=16, patch_size=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llava") / "model"
    model = small().build()
    to_hugging_face(folder, small(), model.init(0), fields={"image_token_index": VOCAB - 1})
    return write_chat_tokenizer(folder, TEMPLATE, special=SPECIAL)


def test_layers_that_are_not_used_are_not_built():
    values = LLAVA.with_parts({**LLAVA.write(small()), "vision_config.num_hidden_layers": 5})
    built = {
        layer: LLAVA.read({**values, "vision_feature_layer": layer}).encoder.encoder.stack
        for layer in (-1, -2, 3)
    }
    assert {layer: stack.num_layers for layer, stack in built.items()} == {-1: 5, -2: 4, 3: 3}
    for layer in (-6, 6, [-2, -5]):
        with pytest.raises(ConfigError, match="and the encoder has 5 layers"):
            LLAVA.read({**values, "vision_feature_layer": layer})


def test_another_encoder_is_refused():
    values = LLAVA.with_parts(
        {**LLAVA.write(small()), "vision_config.model_type": "siglip_vision_model"}
    )
    with pytest.raises(ConfigError, match="siglip_vision_model"):
        LLAVA.read(values)


def test_weights_are_read_as_they_were_written(folder):
    found = from_hugging_face(folder)
    np.testing.assert_array_equal(
        found.state["encoder"]["connector"]["up"]["weight"],
        small().build().init(0)["encoder"]["connector"]["up"]["weight"],
    )


def picture(value):
    file = io.BytesIO()
    Image.fromarray(np.full((20, 30, 3), value, np.uint8)).save(file, "png")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    return ContentPart("image_url", "messages[0].content[0].image_url.url", url)


@pytest.mark.slow
def test_convert_says_what_to_do_with_such_a_model(folder, tmp_path):
    told = call("convert", f"hf:{folder}", tmp_path / "asked")
    assert told.rstrip().endswith(f"axcore serve {tmp_path / 'asked'}")


def test_a_text_part_that_no_family_reads_alone_is_refused(folder, tmp_path):
    with pytest.raises(ConfigError, match="no family reads the text part of a llava"):
        call("convert", f"hf:{folder}", tmp_path / "text", "--text-part")
    assert not (tmp_path / "text").exists()


@pytest.mark.slow
def test_a_published_folder_answers_about_pictures(folder):
    opened = open_model(folder)
    assert opened.trainer.data.config.features["chat"].soft_token == "<image>"
    cfg = EngineConfig(max_num_seqs=2, max_length=64, batch_size_buckets=(2,))
    served = start_engine(opened, ServerConfig(engine=cfg))
    try:
        reader = served.reader
        assert reader.takes_parts
        messages = [{"role": "user", "content": (picture(9), "what?")}]
        texts, parts = marked(messages, reader)
        text = served.tokenizer.known_chat_template.render(texts, add_generation_prompt=True)
        assert text == "USER: <image>\nwhat?ASSISTANT:"
        tokens = reader.placed(served.tokenizer.encode_rendered(text), len(parts))
        assert sum(token >= 1 << 24 for token in tokens) == 4
        value = reader.read(parts[0], served.limits).value
        assert jnp.shape(value) == (16, 16, 3)
    finally:
        served.engine.close()
