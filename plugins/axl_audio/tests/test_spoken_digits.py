"""The experiment from its data to its transcripts, and what it says without espeak-ng."""

import shutil

import pytest
from axl_audio import digits
from axl_audio.digits import SpokenDigits, Utterance, spoken_digits, utterances
from axl_audio.transcribe import command, transcribe, word_error_rate
from click.testing import CliRunner

from axcore.config import update_config
from axcore.errors import DataError
from axcore.learner import ConstantSchedule
from axcore.runs import load_run
from axcore.testing import trainer_on

needs_espeak = pytest.mark.skipif(
    shutil.which("espeak-ng") is None, reason="apt-get install espeak-ng"
)


@pytest.fixture(autouse=True)
def few(tmp_path, monkeypatch):
    """A cache of the test's own, with two strings of each of two speakers."""
    monkeypatch.setenv("AXCORE_DATA_CACHE", str(tmp_path / "cache"))
    said = [one for one in utterances() if one.name.startswith(("f1/en-us", "m8/en-us"))]
    monkeypatch.setattr(digits, "utterances", lambda: iter(said))
    return said


def test_what_is_spoken_is_the_same_on_every_machine():
    said = list(utterances())
    assert len({one.name for one in said}) == len(said) == 1840
    text = "zero zero one five"
    first = Utterance("f1/en-us-00", text, "en-us+f1", 165, 68, {".txt": text})
    assert said[0] == first


def test_without_the_synthesizer_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DataError, match="espeak-ng, which is not installed") as raised:
        spoken_digits()
    assert "apt-get install espeak-ng" in str(raised.value)


@needs_espeak
def test_speakers_are_trained_on_or_held_out(few):
    for speakers, name in (("train", "f1"), ("held_out", "m8")):
        files = SpokenDigits.Config(speakers=speakers).build().files()
        assert len(files) == 10
        assert all(file.name.startswith(f"{name}/") for file in files)
    texts = {one.name: one.text for one in few}
    assert all(file.path.with_suffix(".txt").read_text() == texts[file.name[:-4]] for file in files)


@needs_espeak
def test_a_voice_that_is_unknown_is_named(monkeypatch):
    odd = Utterance("odd/00", "one", "en-us+nobody", 120, 50, {})
    monkeypatch.setattr(digits, "utterances", lambda: iter([odd]))
    with pytest.raises(DataError, match="espeak-ng has no voice nobody"):
        spoken_digits()


def test_word_error_rate_counts_words_that_differ():
    assert word_error_rate(["one two", "", "a b"], ["one too", "six", "a c b"]) == 3 / 6
    assert word_error_rate(["x"], ["x"]) == 0
    with pytest.raises(ValueError, match="no words"):
        word_error_rate(["x"], [""])


@needs_espeak
@pytest.mark.slow
def test_it_trains_resumes_and_transcribes(tmp_path):
    from axl_audio.experiments import spoken_digits as experiment

    small = {
        "max_steps": 4,
        "eval_every_steps": 2,
        "checkpoint.every_steps": 2,
        "data.batch_size": 16,
        "model.encoder.dim": 16,
        "model.encoder.stack.unroll": 1,
        # One that does not depend on how many steps there are.
        "learner.schedule": ConstantSchedule.Config(peak=1e-3),
    }
    cfg = update_config(experiment(), small)
    result = trainer_on(cfg, 1).run(tmp_path / "whole")
    assert {"loss", "word_error_rate", "token_error_rate"} <= result.validation.keys()
    trainer_on(update_config(cfg, {"max_steps": 2}), 1).run(tmp_path / "part")
    again = trainer_on(cfg, 1).run(tmp_path / "part")
    assert again.validation == result.validation
    run = load_run(tmp_path / "whole")
    files = [one.path for one in SpokenDigits.Config().build().files()][:3]
    texts = transcribe(run.trainer, run.state, [one.read_bytes() for one in files])
    assert len(texts) == 3
    said = CliRunner().invoke(command, [str(tmp_path / "whole"), "--compare", *map(str, files)])
    assert said.exit_code == 0, said.output
    assert f"{files[0]}: {texts[0]}" in said.output
    assert "word error rate" in said.output
