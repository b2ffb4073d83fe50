"""A language model that reads pictures: what it is trained on is what it is served."""

import base64
import io
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_vision.ask import command
from axl_vision.experiments import digits_chat
from axl_vision.image_tokens import ImageTokens
from axl_vision.models import vit
from click.testing import CliRunner
from PIL import Image

from axcore.config import update_config
from axcore.errors import DataError
from axcore.evaluation import InputQuestions
from axcore.inference import EncoderInput, EngineConfig, Request, Sampling
from axcore.module import functional
from axcore.runs import engine_for, export_run, load_run, open_model
from axcore.serving.config import Limits
from axcore.serving.inputs import ContentPart, input_reader
from axcore.testing.tiny import trainer_on

ENCODER = vit("toy", num_classes=2, image_size=16, patch_size=8).encoder


def test_a_picture_becomes_a_token_for_each_patch():
    model = ImageTokens.Config(encoder=ENCODER, dim=8).build()
    image = jnp.zeros((2, *model.input_spec.shape), jnp.uint8)
    tokens, _ = functional(model, model.init(0), image)
    assert tokens.shape == (2, model.num_tokens, 8)


def test_a_patch_changes_its_own_token_most():
    model = ImageTokens.Config(encoder=ENCODER, dim=8).build()
    state = model.init(1)
    image = jnp.zeros((1, 16, 16, 3), jnp.uint8)
    changed = image.at[:, 8:, :8].set(255)
    first, second = (functional(model, state, one)[0] for one in (image, changed))
    assert jnp.argmax(jnp.abs(first - second).sum(-1)) == 2


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of few steps, which says little that is right."""
    folder = tmp_path_factory.mktemp("run")
    changes = {
        "max_steps": 3,
        "eval_every_steps": 3,
        "data.batch_size": 16,
        "data.validation_batches": 1,
        "checkpoint.every_steps": 3,
    }
    trainer_on(update_config(digits_chat(), changes), 1).run(folder / "run")
    return folder / "run"


def answer(opened, prompt, image):
    """Returns the tokens of an engine's answer."""
    request = Request(
        prompt=tuple(map(int, prompt)),
        max_tokens=5,
        sampling=Sampling(temperature=0),
        inputs=(EncoderInput(image),),
        ignores_end=True,
    )
    engine, _ = engine_for(opened, EngineConfig(max_num_seqs=2))
    with engine:
        return [token.id for token in engine.submit(request).result().tokens]


@pytest.mark.slow
def test_a_served_answer_is_that_of_a_plain_pass(run):
    opened = open_model(run)
    feature = opened.trainer.data.features["image"]
    _, rows = opened.trainer.data._splits
    image = feature.make(rows._store[0], None)[""]
    row = opened.trainer.data.features["chat"].make(rows._store[0], None)
    prompt = row["tokens"][: int(np.argmax(row["loss_weights"] > 0)) + 1]

    def logits(tokens):
        """Padded, so that there is one program."""
        padded = jnp.asarray([[*tokens, *[0] * (opened.length - len(tokens))]], jnp.int32)
        at = jnp.asarray([[len(tokens) - 1]], jnp.int32)
        images = jnp.asarray(image)[None]
        return program(opened.state, padded, at, images)[0, 0]

    program = jax.jit(
        lambda state, tokens, at, images: functional(
            opened.model, state, tokens, None, at, inputs=images, method="logits"
        )[0]
    )
    expected = list(map(int, prompt))
    for _ in range(5):
        expected.append(int(jnp.argmax(logits(expected))))
    assert answer(opened, prompt, image) == expected[len(prompt) :]


@pytest.mark.slow
def test_an_export_is_read_and_answers_as_its_run(run, tmp_path):
    """It is a LLaVA, and says which token marks a picture."""
    folder = tmp_path / "llava"
    opened = open_model(run)
    assert export_run(load_run(run), folder) == "a model of type llava"
    values = json.loads((folder / "config.json").read_text())
    mark = opened.trainer.data.features["chat"].mark
    assert values["image_token_index"] == mark
    assert (values["eos_token_id"], values["text_config"]["max_position_embeddings"]) == (257, 144)
    exported = open_model(folder)
    chats = [one.trainer.data.features["chat"] for one in (opened, exported)]
    prompt, again = (chat.prompt("Which digit?") for chat in chats)
    assert prompt == again
    image = np.full((16, 16, 3), 200, np.uint8)
    assert answer(exported, prompt, image) == answer(opened, prompt, image)


@pytest.mark.slow
def test_a_server_reads_pictures_as_training_does(run):
    opened = open_model(run)
    reader = input_reader(opened.model, opened.trainer.data, opened.tokenizer.chat_template)
    file = io.BytesIO()
    Image.fromarray(np.full((30, 40, 3), 77, np.uint8)).save(file, "png")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    found = reader.read(ContentPart("image_url", "here", url), Limits())
    np.testing.assert_array_equal(found.value, np.full((16, 16, 3), 77, np.uint8))


@pytest.mark.slow
def test_a_run_is_asked_about_files_and_about_what_was_held_out(run, tmp_path):
    path = tmp_path / "a.png"
    Image.fromarray(np.zeros((20, 20), np.uint8)).save(path)
    asked = CliRunner().invoke(command, [str(run), str(path), "-q", "Which digit?", "--json"])
    assert asked.exit_code == 0, asked.output
    answer = json.loads(asked.stdout.splitlines()[-1])
    assert answer.keys() == {"file", "question", "answer"}
    opened = open_model(run)
    records = itertools.islice(opened.trainer.data.held_out(), 3)
    with InputQuestions(opened) as asking:
        right, total = asking.exact_match(records)
    assert total == 9
    assert 0 <= right <= total


@pytest.mark.slow
def test_a_file_that_is_not_a_picture_is_named(run, tmp_path):
    path = tmp_path / "a.png"
    path.write_text("no picture")
    asked = CliRunner().invoke(command, [str(run), str(path), "-q", "Which digit?"])
    assert isinstance(asked.exception, DataError)
    assert "BytesIO" not in str(asked.exception)
    assert "a.png" in str(asked.exception)


@pytest.mark.parametrize("args", [[], ["--question", "a"], ["--held-out", "README"]])
def test_ask_says_what_it_takes(args, tmp_path):
    (tmp_path / "README").write_text("")
    given = [str(tmp_path / one) if one == "README" else one for one in args]
    asked = CliRunner().invoke(command, ["run", *given])
    assert asked.exit_code == 2
    assert "name FILES and a --question, or --held-out alone" in asked.output
