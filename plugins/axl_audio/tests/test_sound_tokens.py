"""A language model that reads sounds: what it is trained on is what it is served."""

import base64
import io
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import openai
import pytest
import soundfile
from axl_audio import digits
from axl_audio.digits import MARK, SpokenDigitChats, single_digits
from axl_audio.experiments import spoken_digits_chat
from axl_audio.models import voxtral
from axl_audio.sound_tokens import SoundTokens, WholeSound
from chat_tokenizer import write_chat_tokenizer
from model_server import serving

from axcore.config import update_config
from axcore.errors import ConfigError
from axcore.inference import EncoderInput, EngineConfig, Request, Sampling
from axcore.interop import to_hugging_face
from axcore.models import llama2
from axcore.module import functional
from axcore.runs import engine_for, export_run, load_run, open_model
from axcore.serving.inputs import input_reader
from axcore.testing import trainer_on

needs_espeak = pytest.mark.skipif(
    shutil.which("espeak-ng") is None, reason="apt-get install espeak-ng"
)
TOY = voxtral(llama2("toy"), "toy").encoder
RATE = 16_000


def tone(seconds=0.4, hz=440.0):
    """A file that a sound of one pitch is in."""
    times = np.arange(round(seconds * RATE)) / RATE
    file = io.BytesIO()
    soundfile.write(file, 0.3 * np.sin(2 * np.pi * hz * times), RATE, format="WAV")
    return file.getvalue()


def test_four_tokens_of_the_encoder_are_one_soft_token():
    model = update_config(TOY, {"dim": 8}).build()
    sound = jnp.zeros((2, *model.input_spec.shape))
    tokens, _ = functional(model, model.init(0), sound)
    assert tokens.shape == (2, model.num_tokens, 8) == (2, 32 // 4, 8)


def test_a_sound_has_as_many_samples_as_the_encoder_has_positions():
    feature = TOY.input_feature().build()
    assert isinstance(feature, WholeSound)
    (samples,) = feature.make({"file": tone()}, None).values()
    assert samples.shape == (32 * 2 * 160,) == TOY.build(dim=8).input_spec.shape
    assert samples[:6000].any()
    assert not samples[6400:].any()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"encoder.sees_padding": False}, "does not say how long each sound is"),
        ({"num_stacked": 5}, "positions.length is 32, not a multiple of num_stacked, 5"),
    ],
)
def test_an_encoder_without_a_length_is_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        update_config(TOY, {"dim": 8, **changes}).build()


def test_each_voice_says_each_digit_and_a_conversation_asks_which():
    said = list(single_digits())
    assert len({one.name for one in said}) == len(said) == 1840
    for one in said[:10]:
        turns = json.loads(one.beside[".json"])["messages"]
        assert turns[0]["content"].startswith(MARK)
        place = [turn["content"].removeprefix(MARK) for turn in turns].index("Which digit?")
        assert turns[place + 1]["content"] == one.text == one.beside[".txt"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of few steps on two voices, which says little that is right."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AXCORE_DATA_CACHE", str(folder / "cache"))
        voices = ("f1/en-us-", "f2/en-us-", "m8/en-us-")
        some = [one for one in single_digits() if one.name.startswith(voices)]
        patch.setattr(digits, "single_digits", lambda: iter(some))
        assert len(SpokenDigitChats.Config().build().files()) == 20
        changes = {
            "max_steps": 2,
            "eval_every_steps": 2,
            "data.batch_size": 16,
            "data.validation_batches": 1,
            "checkpoint.every_steps": 2,
        }
        trainer_on(update_config(spoken_digits_chat(), changes), 1).run(folder / "run")
        yield folder / "run"


@needs_espeak
@pytest.mark.slow
def test_a_served_answer_is_that_of_a_plain_pass(run):
    opened = open_model(run)
    features = opened.trainer.data.features
    sound = features["sound"].make({"file": tone()}, None)[""]
    prompt = list(map(int, features["chat"].prompt("Which digit?")))

    @jax.jit
    def best(tokens, at):
        logits, _ = functional(
            opened.model,
            opened.state,
            tokens,
            None,
            at,
            inputs=jnp.asarray(sound)[None],
            method="logits",
        )
        return jnp.argmax(logits[0, 0])

    expected = list(prompt)
    for _ in range(5):
        padded = jnp.asarray([[*expected, *[0] * (144 - len(expected))]], jnp.int32)
        expected.append(int(best(padded, jnp.asarray([[len(expected) - 1]], jnp.int32))))
    request = Request(
        prompt=tuple(prompt),
        max_tokens=5,
        sampling=Sampling(temperature=0),
        inputs=(EncoderInput(sound),),
        ignores_end=True,
    )
    engine, _ = engine_for(opened, EngineConfig(max_num_seqs=2))
    with engine:
        found = [token.id for token in engine.submit(request).result().tokens]
    assert found == expected[len(prompt) :]


@pytest.fixture(scope="module")
def server(run):
    opened = open_model(run)
    engine, _ = engine_for(opened, EngineConfig(max_num_seqs=2))
    with engine, serving(engine) as made:
        template = opened.tokenizer.chat_template
        made.served.reader = input_reader(opened.model, opened.trainer.data, template)
        yield made


def ask(server, content, **more):
    sound = {"type": "input_audio", "input_audio": {"data": content, **more}}
    question = {"type": "text", "text": "Which digit?"}
    messages = [{"role": "user", "content": [sound, question]}]
    return server.client().chat.completions.create(
        model="small", messages=messages, temperature=0, max_tokens=4
    )


@needs_espeak
@pytest.mark.slow
def test_openai_asks_about_a_sound(server):
    content = base64.b64encode(tone()).decode()
    found = ask(server, content, format="wav")
    assert found.choices[0].message.content is not None
    assert found.usage.prompt_tokens > 20  # soft ones among them
    with pytest.raises(openai.BadRequestError, match="more than max_seconds") as caught:
        ask(server, base64.b64encode(tone(2.0)).decode(), format="wav")
    assert caught.value.body["param"] == "messages[0].content[0].input_audio.data"
    with pytest.raises(openai.BadRequestError, match="cannot be decoded"):
        ask(server, base64.b64encode(b"no sound").decode(), format="mp3")


def test_the_mark_of_a_sound_is_the_token_that_the_folder_names(tmp_path):
    special = ("<|turn|>", "<|end|>", "[AUDIO]")
    cfg = voxtral(update_config(llama2("toy"), {"vocab_size": 259}), "toy")
    fields = {"audio_token_id": 258}
    to_hugging_face(tmp_path / "m", cfg, cfg.build().init(0), fields=fields)
    write_chat_tokenizer(tmp_path / "m", special=special)
    data = open_model(tmp_path / "m").trainer.data.config
    assert data.features["chat"].soft_token == "[AUDIO]"


@needs_espeak
@pytest.mark.slow
def test_an_export_is_a_voxtral_that_answers_as_its_run(run, tmp_path):
    assert export_run(load_run(run), tmp_path / "hf") == "a model of type voxtral"
    values = json.loads((tmp_path / "hf" / "config.json").read_text())
    opened, exported = open_model(run), open_model(tmp_path / "hf")
    assert values["audio_token_id"] == opened.trainer.data.features["chat"].mark
    sound = opened.trainer.data.features["sound"].make({"file": tone()}, None)[""]
    tokens = jnp.asarray([opened.trainer.data.features["chat"].prompt("Which digit?")], jnp.int32)
    one, two = (
        functional(
            each.model, each.state, tokens, inputs=jnp.asarray(sound)[None], method="logits"
        )[0]
        for each in (opened, exported)
    )
    np.testing.assert_allclose(one, two, atol=1e-5)
    assert isinstance(exported.model.encoder, SoundTokens)
