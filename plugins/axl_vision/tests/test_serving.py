"""`/v1/embeddings` by a dual encoder, of texts and of pictures."""

import base64
import io
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import openai
import pytest
from axl_vision.experiments import digits_clip
from axl_vision.models import clip, siglip
from axl_vision.serving import endpoints
from model_server import serving_model
from openai.types import CreateEmbeddingResponse
from PIL import Image

from axcore.data import ByteTokenizer
from axcore.errors import ConfigError
from axcore.interop import to_hugging_face
from axcore.module import functional
from axcore.serving import ApiModel, ServedApi, ServerConfig, find_model_api, start_model_api
from axcore.serving.inputs import ContentPart

TEXTS = ["one", "the digit seven", "a drawing of 4"]


@pytest.fixture(scope="module")
def opened():
    """What the server has of a run of digits-clip, with random weights."""
    cfg = digits_clip()
    model = cfg.model.build()
    features = {name: one.build() for name, one in cfg.data.features.items()}
    trainer = SimpleNamespace(data=SimpleNamespace(features=features))
    return ApiModel(folder=Path("run"), model=model, state=model.init(0), trainer=trainer)


@pytest.fixture(scope="module")
def client(opened):
    served = ServedApi(name="digits", endpoints=tuple(endpoints(opened)), state=opened.state)
    with serving_model(served) as made:
        yield made.client()


def test_vectors_are_those_of_training_whatever_comes_with_them(client, opened):
    text = opened.trainer.data.features["text"]
    rows = [text.make({"txt": one}, None) for one in TEXTS]
    arrays = [jnp.asarray(np.stack([row[name] for row in rows])) for name in ("", "_mask")]
    wanted, _ = functional(opened.model, opened.state, *arrays, method="text_vectors")
    found = client.embeddings.create(model="digits", input=TEXTS)
    np.testing.assert_allclose([one.embedding for one in found.data], wanted, atol=1e-5)
    assert found.usage.prompt_tokens == sum(int(row["_mask"].sum()) for row in rows)
    alone = client.embeddings.create(model="digits", input=TEXTS[1]).data[0].embedding
    np.testing.assert_allclose(alone, wanted[1], atol=1e-5)


@pytest.mark.parametrize(
    ("text", "said"),
    [("x" * 23, "maximum context length is 24 tokens"), ("", "empty"), ([300], "has token 300")],
)
def test_texts_that_it_was_not_trained_on_are_refused(client, text, said):
    with pytest.raises(openai.BadRequestError, match=said):
        client.embeddings.create(model="digits", input=text)


def picture(seed):
    """Returns the file of a picture, and the part of a message that has it."""
    pixels = np.random.default_rng(seed).integers(0, 255, (20, 30, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    return file.getvalue(), {"type": "image_url", "image_url": {"url": url}}


def vectors_of(opened, *files):
    feature = opened.trainer.data.features["image"]
    field = feature.config.field
    rows = jnp.asarray(np.stack([feature.make({field: one}, None)[""] for one in files]))
    return functional(opened.model, opened.state, rows, method="image_vectors")[0]


def test_pictures_and_texts_of_a_request_have_vectors_in_their_order(client, opened):
    files, parts = zip(*map(picture, range(3)), strict=True)
    asked = [parts[0], TEXTS[1], parts[1], {"type": "text", "text": TEXTS[1]}, parts[2]]
    found = client.embeddings.create(model="digits", input=asked)
    vectors = np.array([one.embedding for one in found.data])
    np.testing.assert_allclose(vectors[[0, 2, 4]], vectors_of(opened, *files), atol=1e-5)
    alone = client.embeddings.create(model="digits", input=TEXTS[1])
    np.testing.assert_allclose(vectors[[1, 3]], [alone.data[0].embedding] * 2, atol=1e-5)
    assert found.usage.prompt_tokens == 2 * alone.usage.prompt_tokens


def test_messages_with_one_picture_have_one_vector(client, opened):
    file, part = picture(5)
    body = {"model": "digits", "messages": [{"role": "user", "content": [part]}]}
    found = client.post("/embeddings", body=body, cast_to=CreateEmbeddingResponse)
    vector = [one.embedding for one in found.data]
    np.testing.assert_allclose(vector, vectors_of(opened, file), atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}, "2 t"),
        ({"messages": [{"role": "user", "content": "a"}], "input": "a"}, "expected one of them"),
        ({"input": [picture(0)[1]] * 65}, "65 parts"),
        ({"input": [{"type": "input_audio", "input_audio": {"data": "AA"}}]}, "input_audio"),
        ({"input": [{"type": "image_url", "image_url": {"url": "file:///a"}}]}, "does not fetch"),
        (
            {"input": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]},
            "be read",
        ),
        ({"input": [{"image": "AA"}]}, "type"),
    ],
)
def test_other_inputs_are_refused(client, fields, said):
    with pytest.raises(openai.BadRequestError, match=said):
        client.post("/embeddings", body={"model": "digits", **fields}, cast_to=object)


def test_a_pretrained_clip_is_served_by_its_folder(tmp_path):
    size = ByteTokenizer.Config().build().vocab_size
    sizes = {"image_size": 16, "patch_size": 4, "vocab_size": size, "max_length": 20}
    cfg = clip("toy", **sizes)
    to_hugging_face(tmp_path / "clip", cfg, cfg.build().init(0))
    api = find_model_api(tmp_path / "clip")
    assert (api.name, api.plugin) == ("text-embeddings", "axl-vision")
    opened = ApiModel(
        folder=tmp_path, model=cfg.build(), state=None, tokenizer=ByteTokenizer.Config().build()
    )
    (made,) = endpoints(opened)
    assert (made._dim, made._max_length) == (32, 20)
    assert made._read_part(ContentPart("image_url", "", picture(1)[1]["image_url"]["url"]))
    assert made._encode(" ab ").tolist() == [256, 97, 98, 257]
    opened = ApiModel(folder=tmp_path, model=siglip("toy").build(), state=None)
    with pytest.raises(ConfigError, match="changed by code of its own"):
        endpoints(opened)
    with pytest.raises(Exception, match="the folder has no tokenizer"):
        start_model_api(api, tmp_path / "clip", ServerConfig())
