"""`/v1/audio/transcriptions` by OpenAI's client: transcripts, their forms, and refusals."""

import io
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import openai
import pytest
import soundfile
from axl_audio import digits
from axl_audio.decoding import SoundJob, Span, TokenTranscriber, Transcript
from axl_audio.encoder import CTCModel, SpeechEncoder, Subsampling
from axl_audio.experiments import spoken_digits
from axl_audio.models import whisper
from axl_audio.serving import TranscriptionRequest, endpoints
from axl_audio.sound import Audio
from axl_audio.transcribe import transcribe
from model_server import serving_model

from axcore.config import evolve, update_config
from axcore.data import ByteTokenizer, Text
from axcore.errors import ConfigError
from axcore.interop import to_hugging_face
from axcore.layers import ScannedLayers, encoder_layer
from axcore.learner import ConstantSchedule
from axcore.module import functional
from axcore.runs import load_run
from axcore.serving import (
    ApiKeys,
    ApiModel,
    Limits,
    ServedApi,
    ServerConfig,
    find_model_api,
    start_model_api,
)
from axcore.tasks import CTC
from axcore.testing import trainer_on

RATE = 16_000
TOKENIZER = ByteTokenizer.Config().build()


def tone(seconds=0.5, hz=440.0, *, rate=RATE, form="WAV"):
    """A file that a sound of one pitch is in."""
    times = np.arange(round(seconds * rate)) / rate
    file = io.BytesIO()
    soundfile.write(file, 0.3 * np.sin(2 * np.pi * hz * times), rate, format=form)
    return file.getvalue()


def ctc_opened(task=None):
    """A model by CTC of random weights, as the server has it of a run."""
    stack = ScannedLayers.Config(num_layers=1, layer=encoder_layer(num_heads=2, hidden_dim=16))
    encoder = SpeechEncoder.Config(
        dim=16, subsampling=Subsampling.Config(strides=(2, 2)), stack=stack
    )
    cfg = CTCModel.Config(vocab_size=TOKENIZER.vocab_size, encoder=encoder)
    cfg = update_config(cfg, {"features.num_bands": 20})
    model = cfg.build()
    features = {
        "sound": Audio.Config(max_seconds=1.0).build(),
        "text": Text.Config(length=24).build(),
    }
    trainer = SimpleNamespace(
        data=SimpleNamespace(features=features), task=task or CTC.Config().build(model=cfg)
    )
    return ApiModel(folder=Path("run"), model=model, state=model.init(1), trainer=trainer)


@pytest.fixture(scope="module")
def whisper_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "whisper-toy"
    cfg = whisper("toy")
    to_hugging_face(folder, cfg, cfg.build().init(0))
    return folder


@pytest.fixture(scope="module")
def server(whisper_folder):
    api = find_model_api(whisper_folder)
    assert (api.name, api.plugin) == ("transcriptions", "axl-audio")
    served, run = start_model_api(
        api, whisper_folder, ServerConfig(limits=Limits(max_form_bytes=100_000))
    )
    assert run is None
    with serving_model(served) as made:
        yield made


@pytest.fixture(scope="module")
def client(server):
    return server.client()


@pytest.fixture(scope="module")
def ctc_client():
    opened = ctc_opened()
    served = ServedApi(name="digits", endpoints=tuple(endpoints(opened)), state=opened.state)
    with serving_model(served, keys=ApiKeys(("key-of-somebody",))) as made:
        yield made.client("key-of-somebody")


def ask(client, content, name="a.wav", model="whisper-toy", **fields):
    return client.audio.transcriptions.create(model=model, file=(name, content), **fields)


def likeliest(model, state, sound):
    """The likeliest token after all before it, one after the other, up to the end."""
    row = jnp.asarray(np.pad(sound, (0, 9600 - len(sound))))[None]
    features, _ = functional(model.features, {}, row, jnp.array([len(sound)]))
    tokens = np.full((1, 40), 257, np.int32)
    tokens[0, 0] = 256
    logits = jax.jit(partial(functional, model, method="logits"))
    for place in range(39):
        tokens[0, place + 1] = np.argmax(logits(state, features, jnp.asarray(tokens))[0][0, place])
        if tokens[0, place + 1] == 257:
            break
    return [one for one in tokens[0, 1:].tolist() if one != 257]


def test_a_transcript_is_what_the_model_writes(client, server, whisper_folder):
    """Equal to the plain loop over all of the text for each new token."""
    model, state = whisper("toy").build(), server.served.state
    for hz in (300, 1000):
        sound = soundfile.read(io.BytesIO(tone(hz=hz)), dtype="float32")[0]
        wanted = TOKENIZER.decode(likeliest(model, state, sound)).strip()
        assert ask(client, tone(hz=hz)).text == wanted
        assert len(wanted) > 3
        assert ask(client, tone(hz=hz), response_format="text") == wanted + "\n"


def test_what_is_said_of_a_sound(client):
    found = ask(client, tone(0.5), response_format="verbose_json")
    assert (found.duration, found.text) == (0.5, ask(client, tone(0.5)).text)
    for form in ("FLAC", "OGG"):  # of another rate and lossy, a little else is heard
        assert ask(client, tone(rate=22_050, form=form), f"a.{form.lower()}").text


def test_the_model_is_listed_and_counted(client, server):
    assert [one.id for one in client.models.list()] == ["whisper-toy"]
    assert server.send("ready").json["model"] == "whisper-toy"
    ask(client, tone())
    metrics = server.send("metrics").text
    assert 'path="/v1/audio/transcriptions",status="200"' in metrics
    assert "axcore_calls_total" in metrics
    assert server.send("stats").json["num_waiting"] == 0
    assert server.send("v1/chat/completions", {"messages": []}).status == 404


def cut(content, share):
    return content[: round(share * len(content))]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "file is empty"),
        (b"no sound but words " * 20, "it cannot be decoded"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4, "it cannot be decoded"),
        (bytes(1000), "it cannot be decoded"),
        (tone(0.7), "it has 0.70 seconds, more than the 0.6"),
        (tone(0.0), "it contains no sound"),
        (cut(tone(), 0.6), "it ends too early"),
        (cut(tone(), 0.001), "it cannot be decoded"),
        (cut(tone(form="FLAC"), 0.6), "it cannot be decoded"),
        (cut(tone(form="OGG"), 0.95), "it is damaged or ends too early"),
        (tone(form="OGG")[:-500] + bytes(400) + tone(form="OGG")[-100:], "it is damaged"),
        (tone(0.4, rate=500), "it has 500 samples a second"),
        (b"RIFF" + tone()[4:24] + bytes([255] * 4) + tone()[28:], "it cannot be decoded"),
    ],
    ids=range(13),
)
def test_a_file_that_is_no_sound_is_refused(client, content, text):
    with pytest.raises(openai.BadRequestError, match=text) as raised:
        ask(client, content)
    assert raised.value.param == "file"


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"response_format": "srt"}, "response_format", "'srt', and this model says no times"),
        ({"response_format": "xml"}, "response_format", "'xml'; expected 'json' or 'text'"),
        ({"timestamp_granularities": ["word"]}, "timestamp_granularities[]", "says no times"),
        ({"temperature": 0.5}, "temperature", "temperature is 0.5; the likeliest text"),
        ({"temperature": 5}, "temperature", "expected a number from 0"),
        ({"prompt": "Digits:"}, "prompt", "continues no text"),
        ({"stream": True}, "stream", "stream is not supported"),
        ({"extra_body": {"speed": "2"}}, "speed", "There is no field 'speed'"),
    ],
)
def test_what_cannot_be_asked_for_is_named(client, fields, param, text):
    with pytest.raises(openai.BadRequestError, match=text) as raised:
        ask(client, tone(), **fields)
    assert raised.value.param == param


def test_other_refusals_are_as_for_texts(client, server):
    with pytest.raises(openai.NotFoundError, match="There is no model 'whisper-1'; this server"):
        ask(client, tone(), model="whisper-1")
    with pytest.raises(openai.APIStatusError, match="at most 100,000 bytes") as raised:
        ask(client, bytes(200_000))
    assert raised.value.status_code == 413
    path = "v1/audio/transcriptions"
    for body, kind, status, text in (
        (b"{}", "application/json", 415, "expected multipart/form-data"),
        (b"--x--\r\n", "multipart/form-data; boundary=x", 400, "file is missing"),
        (b"--x\r\n", "multipart/form-data; boundary=x", 400, "its last boundary is missing"),
        (b"--x--\r\n", "multipart/form-data", 400, "names no boundary"),
    ):
        reply = server.send(path, body, content_type=kind)
        assert (reply.status, text in reply.json["error"]["message"]) == (status, True), reply
    form = "multipart/form-data; boundary=x"
    reply = server.send(path, b"--x--\r\n", content_type=form, origin="http://example.org")
    assert (reply.status, reply.json["error"]["code"]) == (403, "other_site")
    server.served.num_active_requests, most = 256, server.served.num_active_requests
    with pytest.raises(openai.RateLimitError, match="as many as it may"):
        ask(client, tone())
    server.served.num_active_requests = most


def test_ctc_says_when_words_are_said(ctc_client):
    many = [tone(0.4 + 0.1 * n, hz=300 + 200 * n) for n in range(4)]
    asked = {"model": "digits", "response_format": "verbose_json"}
    for content in many:
        granularities = ["word", "segment"]
        found = ask(ctc_client, content, timestamp_granularities=granularities, **asked)
        words = [word.word for word in found.words]
        assert " ".join(words) == " ".join(found.text.split())
        assert " ".join(one.text for one in found.segments) == " ".join(words)
        times = [time for word in found.words for time in (word.start, word.end)]
        assert times == sorted(times)
        assert all(0 <= time <= found.duration + 0.04 for time in times)


def test_a_batch_says_what_each_sound_does_alone():
    opened = ctc_opened()
    (made,) = endpoints(opened)
    jobs = [SoundJob(samples=np.float32(np.sin(np.arange(9000) * hz / 40))) for hz in range(5)]
    together = made._transcriber.transcribe(opened.state, jobs)
    assert together == [made._transcriber.transcribe(opened.state, [job])[0] for job in jobs]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="apt-get install espeak-ng")
def test_a_run_is_served_as_it_transcribes(tmp_path, monkeypatch):
    """Trained a little, so that it writes something; newer weights answer once they are given."""
    monkeypatch.setenv("AXCORE_DATA_CACHE", str(tmp_path / "cache"))
    said = [one for one in digits.utterances() if one.name.startswith(("f1/en-us", "m8/en-us"))]
    monkeypatch.setattr(digits, "utterances", lambda: iter(said))
    changes = {
        "max_steps": 60,
        "eval_every_steps": 60,
        "checkpoint.every_steps": 30,
        "data.batch_size": 16,
        "model.encoder.dim": 32,
        "model.encoder.stack.unroll": 1,
        "learner.schedule": ConstantSchedule.Config(peak=3e-3),
    }
    trainer_on(update_config(spoken_digits(), changes), 1).run(tmp_path / "run")
    files = [one.path.read_bytes() for one in digits.SpokenDigits.Config().build().files()]
    api = find_model_api(tmp_path / "run")
    served, run = start_model_api(api, tmp_path / "run", ServerConfig(), step=30, names=("digits",))
    assert (served.step, run) == (30, None)
    wanted = {
        step: transcribe(run.trainer, run.state, files)
        for step in (30, 60)
        for run in (load_run(tmp_path / "run", step=step),)
    }
    assert wanted[30] != wanted[60]
    newest = load_run(tmp_path / "run").restored(60, on_host=True)
    with serving_model(served) as made, ThreadPoolExecutor(4) as pool:
        for step in (30, 60):
            sent = partial(ask, made.client(), model="digits")
            assert [one.text for one in pool.map(sent, files)] == [
                text.strip() for text in wanted[step]
            ]
            served.replace_weights(newest.state, 60)
        assert made.send("v1/models").json["data"][0]["step"] == 60


def test_subtitles_have_the_times_of_words():
    (made,) = endpoints(ctc_opened())
    segments = (Span("one <2>", 0.04, 0.9), Span("three", 3661.5, 3662.0))
    said = Transcript(text="one <2> three", segments=segments)

    def shown(form):
        job = TranscriptionRequest(sound=None, form=form, granularities=(), seconds=3663.0)
        return made.response(job, said, model="digits")

    assert shown("srt") == (
        "1\n00:00:00,040 --> 00:00:00,900\none <2>\n\n2\n01:01:01,500 --> 01:01:02,000\nthree\n"
    )
    assert shown("vtt").startswith("WEBVTT\n\n00:00:00.040 --> 00:00:00.900\none &lt;2&gt;\n")


class WhisperTokens(ByteTokenizer):
    """Bytes, and a few of Whisper's special tokens, numbered from 258; times are behind them."""

    NAMES = ("startoftranscript", "en", "de", "transcribe", "startofprev", "notimestamps")

    def added_token(self, name):
        numbers = {f"<|{one}|>": 258 + n for n, one in enumerate(self.NAMES)}
        return numbers.get(name)


FIRST_TIME = 264


@pytest.fixture(scope="module")
def instructed():
    """What transcribes with special tokens, and the state of its model."""
    model = evolve(whisper("toy"), vocab_size=300).build()
    tokenizer = WhisperTokens(ByteTokenizer.Config())
    sizes = {"num_samples": 9600, "max_tokens": 40}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("axl_audio.decoding._MULTILINGUAL", 300)
        made = TokenTranscriber(model, tokenizer, suppressed=[*range(97, 123)], **sizes)
    return made, model.init(0)


def test_whisper_gets_language_task_and_what_was_said_before(instructed):
    made, state = instructed
    assert (made.languages, made.reads_prompts) == (("de", "en"), True)
    assert made._prompt("de", None) == [258, 260, 261, 263]
    assert made._prompt(None, "x" * 99, is_timed=True) == [262, *b"x" * 19, 258]
    samples = np.float32(np.sin(np.arange(9000) / 9))
    (found,) = made.transcribe(state, [SoundJob(samples=samples)])
    assert found.language in ("en", "de")
    assert not any("a" <= letter <= "z" for letter in found.text)
    (again,) = made.transcribe(state, [SoundJob(samples=samples, language=found.language)])
    assert again == found


def test_times_of_whisper_are_in_pairs_that_grow(instructed):
    made, state = instructed
    samples = np.float32(np.sin(np.arange(9000) / 9))
    (found,) = made.transcribe(state, [SoundJob(samples=samples, wants_times=True)])
    said = "".join(one.text for one in found.segments)
    assert "".join(found.text.split()) == "".join(said.split())
    for segment in found.segments:
        assert 0 <= segment.start <= segment.end <= 9000 / RATE
    starts = [segment.start for segment in found.segments]
    assert starts == sorted(starts)


def test_tokens_between_times_are_segments(instructed):
    made, _ = instructed
    said = [FIRST_TIME, *b"ab", FIRST_TIME + 5, FIRST_TIME + 5, *b" c", FIRST_TIME + 7, *b" d"]
    assert made._timed(said, 0.5) == (
        Span("ab", 0.0, 0.1),
        Span(" c", 0.1, 0.14),
        Span(" d", 0.14, 0.5),
    )
    assert made._timed([FIRST_TIME, FIRST_TIME + 30], 0.5) == ()


def test_a_model_that_is_trained_otherwise_is_refused():
    task = SimpleNamespace()
    with pytest.raises(ConfigError, match="CTCModel that is trained by SimpleNamespace"):
        endpoints(ctc_opened(task))


def test_settings_of_an_engine_are_refused(whisper_folder):
    cfg = ServerConfig(mesh={"model": 2})
    with pytest.raises(ConfigError, match="mesh is set, which the API 'transcriptions'"):
        start_model_api(find_model_api(whisper_folder), whisper_folder, cfg)
