"""Whisper: features, logits and transcripts equal those of transformers, weights both ways."""

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from axcore.data import ByteTokenizer
from axcore.inference import Seq2SeqGenerator
from axcore.interop import from_hugging_face, to_hugging_face
from axcore.module import functional

pytestmark = pytest.mark.parity

SIZES = {
    "vocab_size": 264,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "max_source_positions": 30,
    "max_target_positions": 20,
    "pad_token_id": 258,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "decoder_start_token_id": 256,
}


def tone(seconds, rate=16_000):
    """A chord that fades, and noise."""
    times = np.arange(round(seconds * rate)) / rate
    chord = sum(np.sin(2 * np.pi * hz * times) for hz in (220, 1500, 6100))
    noise = np.random.default_rng(0).standard_normal(len(times))
    return (0.2 * chord * np.exp(-times) + 0.01 * noise).astype(np.float32)


@pytest.mark.parametrize("num_bands", [80, 128])
def test_features_equal_those_of_transformers(num_bands):
    transformers = pytest.importorskip("transformers", reason="run make parity")
    from axl_audio.features import WhisperLogMel

    sounds = [tone(2.5), tone(30.0), np.zeros(16_000, np.float32)]
    extract = transformers.WhisperFeatureExtractor(feature_size=num_bands)
    wanted = extract(sounds, sampling_rate=16_000, return_tensors="np").input_features
    padded = np.stack([np.pad(one, (0, 480_000 - len(one))) for one in sounds])
    module = WhisperLogMel.Config(num_bands=num_bands).build()
    lengths = jnp.array([len(one) for one in sounds])
    found, _ = functional(module, {}, jnp.asarray(padded), lengths)
    np.testing.assert_allclose(found.frames, wanted.swapaxes(1, 2), atol=2e-4)
    assert np.abs(np.asarray(found.frames) - wanted.swapaxes(1, 2)).mean() < 1e-6
    assert found.is_real.sum(1).tolist() == [250, 3000, 100]


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    transformers = pytest.importorskip("transformers", reason="run make parity")
    import torch

    torch.manual_seed(0)
    cfg = transformers.WhisperConfig(**SIZES)
    model = transformers.WhisperForConditionalGeneration(cfg).float().eval()
    with torch.no_grad():
        for param in model.parameters():  # norms and biases are one and zero at first
            param.add_(0.1 * torch.randn_like(param))
    folder = tmp_path_factory.mktemp("whisper") / "whisper"
    model.save_pretrained(folder)
    return model, folder


def inputs():
    draw = np.random.default_rng(1)
    frames = draw.normal(size=(2, 60, 80)).astype(np.float32)
    return frames, draw.integers(0, 256, (2, 12))


def logits_of(read, frames, tokens):
    from axl_audio.features import Features

    features = Features(jnp.asarray(frames), jnp.ones(frames.shape[:2], bool))
    found, _ = functional(read.model, read.state, features, jnp.asarray(tokens), method="logits")
    return np.asarray(found)


def their_logits(model, frames, tokens):
    import torch

    with torch.no_grad():
        features = torch.from_numpy(frames.swapaxes(1, 2).copy())
        found = model(input_features=features, decoder_input_ids=torch.from_numpy(tokens))
    return found.logits.numpy()


def test_logits_equal_those_of_transformers(whisper):
    model, folder = whisper
    wanted = their_logits(model, *inputs())
    assert np.abs(wanted).max() > 1
    found = logits_of(from_hugging_face(folder), *inputs())
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_what_is_written_again_is_the_same_file(whisper, tmp_path):
    _, folder = whisper
    read = from_hugging_face(folder)
    to_hugging_face(tmp_path / "again", read.model.config, read.state)
    before, after = (load_file(one / "model.safetensors") for one in (folder, tmp_path / "again"))
    assert before.keys() == after.keys()
    assert all((before[name] == after[name]).all() for name in before)


def test_transformers_reads_what_was_trained_here(tmp_path):
    transformers = pytest.importorskip("transformers", reason="run make parity")
    from axl_audio.models import whisper

    cfg = whisper("toy")
    module = cfg.build()
    tokens = {"bos_token_id": 256, "eos_token_id": 257, "pad_token_id": 258}
    to_hugging_face(tmp_path / "new", cfg, module.init(0), fields=tokens)
    model, said = transformers.WhisperForConditionalGeneration.from_pretrained(
        tmp_path / "new", output_loading_info=True, attn_implementation="eager"
    )
    assert not any(said.values()), said
    read = from_hugging_face(tmp_path / "new")
    found = logits_of(read, *inputs())
    np.testing.assert_allclose(found, their_logits(model.eval(), *inputs()), atol=1e-4)


def test_greedy_transcripts_equal_those_of_transformers(whisper):
    import torch

    model, folder = whisper
    read = from_hugging_face(folder)
    sound = jnp.asarray(np.stack([tone(0.6), tone(0.6)[::-1]]))
    lengths, prompt = jnp.array([9600, 9600]), np.full((2, 1), 256, np.int32)
    sizes = {"num_rows": 2, "max_tokens": 13, "source_length": 30, "end": 257}
    generator = Seq2SeqGenerator(read.model, **sizes)
    caches = generator.encode(read.state, (sound, lengths))
    found, is_text = generator.generate(read.state, caches, prompt)
    features = functional(read.model.features, {}, sound, lengths)[0].frames
    with torch.no_grad():
        wanted = model.generate(
            torch.from_numpy(np.asarray(features).swapaxes(1, 2).copy()),
            max_new_tokens=12,
            suppress_tokens=None,
            begin_suppress_tokens=None,
            forced_decoder_ids=None,
            do_sample=False,
        ).numpy()
    for row in range(2):
        count = int(is_text[row].sum())
        assert count
        said = wanted[row][wanted[row] != 256][:count]
        assert np.asarray(found)[row, :count].tolist() == said.tolist()


SPECIAL = {"start": 258, "en": 259, "de": 260, "transcribe": 261, "before": 262, "untimed": 263}


SETTINGS = {
    "is_multilingual": True,
    "lang_to_id": {"<|en|>": 259, "<|de|>": 260},
    "task_to_id": {"transcribe": 261},
    "no_timestamps_token_id": 263,
    "max_initial_timestamp_index": 50,
    "suppress_tokens": [*range(258, 263), 40, 41],
    "begin_suppress_tokens": [32, 257],
}


class SpecialTokens(ByteTokenizer):
    """Bytes, and Whisper's special tokens behind them."""

    NAMES = {
        "<|startoftranscript|>": "start",
        "<|startofprev|>": "before",
        "<|notimestamps|>": "untimed",
        "<|transcribe|>": "transcribe",
        "<|en|>": "en",
        "<|de|>": "de",
    }

    def added_token(self, name):
        return SPECIAL.get(self.NAMES.get(name, ""))


@pytest.fixture(scope="module")
def instructed(tmp_path_factory):
    """A model with special tokens and 36 tokens of times, that of transformers and ours."""
    transformers = pytest.importorskip("transformers", reason="run make parity")
    import torch

    torch.manual_seed(3)
    cfg = transformers.WhisperConfig(
        **{**SIZES, "vocab_size": 300, "max_target_positions": 40, "decoder_start_token_id": 258}
    )
    model = transformers.WhisperForConditionalGeneration(cfg).float().eval()
    with torch.no_grad():
        for param in model.parameters():
            param.add_(0.2 * torch.randn_like(param))
    for name, value in SETTINGS.items():
        setattr(model.generation_config, name, value)
    folder = tmp_path_factory.mktemp("instructed") / "whisper"
    model.save_pretrained(folder)
    return model, folder


def their_tokens(model, frames, language, *, is_timed):
    """What transformers generates in one pass, by the processors of its Whisper."""
    import torch
    from transformers import GenerationMixin
    from transformers.generation import logits_process as processors

    given = torch.from_numpy(np.asarray(frames).swapaxes(1, 2).copy())
    with torch.no_grad():
        found = model.detect_language(given).tolist()[0]
        own = found if language is None else SPECIAL[language]
        prompt = [258, own, 261, *([] if is_timed else [263])]
        begin, never = len(prompt), SETTINGS["suppress_tokens"]
        rules = [
            processors.SuppressTokensLogitsProcessor(
                never if is_timed else [*never, *range(263, 300)]
            ),
            processors.SuppressTokensAtBeginLogitsProcessor(
                SETTINGS["begin_suppress_tokens"], begin_index=begin
            ),
        ]
        if is_timed:
            rules.append(
                processors.WhisperTimeStampLogitsProcessor(
                    model.generation_config, begin_index=begin
                )
            )
        tokens = GenerationMixin.generate(
            model,
            input_features=given,
            decoder_input_ids=torch.tensor([prompt]),
            logits_processor=processors.LogitsProcessorList(rules),
            max_length=40,
            do_sample=False,
        )
    said = tokens[0].tolist()[begin:]
    return said[: said.index(257)] if 257 in said else said


@pytest.mark.parametrize("is_timed", [False, True])
def test_what_the_server_decodes_is_what_transformers_generates(instructed, is_timed, monkeypatch):
    from axl_audio.decoding import SoundJob, TokenTranscriber, suppressed_tokens

    monkeypatch.setattr("axl_audio.decoding._MULTILINGUAL", 300)
    model, folder = instructed
    read = from_hugging_face(folder)
    sizes = {"num_samples": 9600, "max_tokens": 40}
    tokenizer = SpecialTokens(ByteTokenizer.Config())
    made = TokenTranscriber(read.model, tokenizer, **sizes, **suppressed_tokens(folder))
    said = []
    monkeypatch.setattr(made, "_timed", lambda tokens, _: said.append([*tokens]) or ())
    monkeypatch.setattr(tokenizer, "decode", lambda tokens: said.append([*tokens]) or "")
    times, num_times = np.arange(9600) / 16_000, 0
    for number in range(12):
        pitch = 150 * (number + 1) * times * (1 + number * times)
        sound = (0.3 * np.sin(2 * np.pi * pitch)).astype(np.float32)
        frames, _ = functional(read.model.features, {}, jnp.asarray(sound)[None], jnp.array([9600]))
        language = (None, "en", "de")[number % 3]
        wanted = their_tokens(model, frames.frames, language, is_timed=is_timed)
        said.clear()
        job = SoundJob(samples=sound, language=language, wants_times=is_timed)
        made.transcribe(read.state, [job])
        assert said[0] == wanted, number
        num_times += sum(token > 263 for token in wanted)
    assert (num_times > 12) == is_timed  # more than the first of each
