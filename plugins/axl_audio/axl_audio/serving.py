"""`/v1/audio/transcriptions`: what `axcore serve` answers with a model that writes down sound."""

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from axcore.data import Text
from axcore.errors import CheckpointError, ConfigError
from axcore.serving import ApiModel, Endpoint, RequestParser, invalid
from axcore.tasks import CTC
from axl_audio.decoding import (
    CTCTranscriber,
    SoundJob,
    Span,
    TokenTranscriber,
    Transcriber,
    Transcript,
    suppressed_tokens,
)
from axl_audio.encoder import MAX_SECONDS, CTCModel
from axl_audio.sound import Audio, decode_sound
from axl_audio.speech_to_text import SpeechToText
from axl_audio.transcribe import row_sizes

_FORMATS = ("json", "text", "verbose_json", "srt", "vtt")
_OF_TIMES = ("srt", "vtt")
_GRANULARITIES = "timestamp_granularities[]"


def endpoints(opened: ApiModel) -> list[Endpoint[Any, Any]]:
    """Return what is answered with a model of sound.

    Raises:
        ConfigError: The run's data have no sound or no text, or the model writes down no sound.
    """
    if opened.trainer is None:
        return [Transcriptions(*_published(opened))]
    audio, text = (_feature(opened.trainer, kind) for kind in (Audio, Text))
    cfg = audio.config
    made: Transcriber
    if isinstance(opened.model, CTCModel) and isinstance(opened.trainer.task, CTC):
        blank = opened.trainer.task.config.blank
        made = CTCTranscriber(
            opened.model,
            text.tokenizer,
            blank=blank,
            sizes=row_sizes(cfg.num_samples, cfg.sample_rate),
        )
    elif isinstance(opened.model, SpeechToText):
        made = TokenTranscriber(
            opened.model,
            text.tokenizer,
            num_samples=cfg.num_samples,
            max_tokens=text.config.length,
            is_instructed=False,
        )
    else:
        raise ConfigError(
            f"a {type(opened.model).__qualname__} that is trained by "
            f"{type(opened.trainer.task).__qualname__} writes down no sound",
            where="task",
            hint="that of `axcore train spoken-digits` does",
        )
    return [Transcriptions(made, sample_rate=cfg.sample_rate, max_seconds=cfg.max_seconds)]


def _published(opened: ApiModel) -> tuple[Transcriber, int, float]:
    """Return what transcribes by a pretrained model, its sample rate, and how much it hears."""
    tokenizer = opened.tokenizer
    assert tokenizer is not None
    if isinstance(opened.model, CTCModel):
        rate = opened.model.config.features.sample_rate
        sizes = row_sizes(round(rate * MAX_SECONDS), rate)
        made = CTCTranscriber(opened.model, tokenizer, blank=tokenizer.pad_id, sizes=sizes)
        return made, rate, MAX_SECONDS
    model: SpeechToText = opened.model
    cfg = model.config
    positions: Any = cfg.encoder.positions
    frames = positions.length * int(np.prod(cfg.encoder.subsampling.strides))
    num_samples = frames * cfg.features.hop
    embedding: Any = cfg.decoder.embedding
    try:
        suppressed = suppressed_tokens(opened.folder)
    except ValueError as error:
        where = str(opened.folder / "generation_config.json")
        raise CheckpointError(f"it is not valid JSON: {error}", where=where) from error
    made = TokenTranscriber(
        model,
        tokenizer,
        num_samples=num_samples,
        max_tokens=embedding.max_length,
        **suppressed,
    )
    return made, cfg.features.sample_rate, num_samples / cfg.features.sample_rate


def _feature(trainer: Any, kind: type) -> Any:
    found = [one for one in getattr(trainer.data, "features", {}).values() if type(one) is kind]
    if not found:
        raise ConfigError(
            f"the run's data have no {kind.__qualname__}",
            where="data.features",
            hint='features={"sound": Audio.Config(...), "text": Text.Config(...)}',
        )
    return found[0]


@attrs.frozen(kw_only=True, eq=False)
class TranscriptionRequest:
    """What is to be written down, and how it is sent.

    Args:
        sound: The sound.
        form: One of `_FORMATS`.
        granularities: What times `verbose_json` has: of `segment`s, of `word`s.
        seconds: Length of the sound.
    """

    sound: SoundJob
    form: str
    granularities: tuple[str, ...]
    seconds: float


class Transcriptions(Endpoint[TranscriptionRequest, Transcript]):
    """Answers `/v1/audio/transcriptions`.

    Args:
        transcriber: Writes down sounds.
        sample_rate: Samples a second that it reads.
        max_seconds: Of the longest sound.
    """

    path = "/v1/audio/transcriptions"
    takes_form = True

    def __init__(self, transcriber: Transcriber, sample_rate: int, max_seconds: float) -> None:
        self._transcriber = transcriber
        self._sample_rate, self._max_seconds = sample_rate, max_seconds
        self.max_batch = transcriber.max_batch

    def read(self, fields: RequestParser) -> TranscriptionRequest:
        """Return what a form asks for."""
        own = self._transcriber
        form = fields.choice("response_format", _FORMATS) or "json"
        if form in _OF_TIMES and not own.granularities:
            message = (
                f"response_format is {form!r}, and this model says no times; expected 'json', "
                "'text' or 'verbose_json'"
            )
            raise invalid(message, "response_format", code="unsupported_value")
        granularities = self._granularities(fields, form)
        temperature = fields.number("temperature", min_value=0.0, max_value=1.0, default=0.0)
        if temperature:
            message = f"temperature is {temperature:g}; the likeliest text is returned, which is 0"
            raise invalid(message, "temperature", code="unsupported_value")
        language, prompt = self._language(fields), fields.text("prompt") or None
        if prompt is not None and not own.reads_prompts:
            message = "prompt is not supported. This model continues no text; leave it out."
            raise invalid(message, "prompt", code="unsupported_field")
        fields.refuse("stream", "The text comes as one.", harmless=("false",))
        fields.refuse("include[]", "There are no log-probabilities.", harmless=([],))
        fields.refuse("chunking_strategy", "A sound is read as one.")
        try:
            samples = decode_sound(
                fields.file("file"), sample_rate=self._sample_rate, max_seconds=self._max_seconds
            )
        except ValueError as error:
            why = str(error).replace("max_seconds, ", "the ")
            raise invalid(f"file is not a sound that can be read: {why}", "file") from error
        return TranscriptionRequest(
            sound=SoundJob(
                samples=samples,
                language=language,
                prompt=prompt,
                wants_times=form in _OF_TIMES or bool(granularities),
            ),
            form=form,
            granularities=granularities,
            seconds=len(samples) / self._sample_rate,
        )

    def compute(self, state: Any, jobs: Sequence[TranscriptionRequest]) -> list[Transcript]:
        """Return the transcript of each sound."""
        return self._transcriber.transcribe(state, [job.sound for job in jobs])

    def response(self, job: TranscriptionRequest, result: Transcript, *, model: str) -> Any:
        """Return a transcript in the form that was asked for."""
        if job.form == "json":
            return {"text": result.text}
        if job.form == "text":
            return result.text + "\n"
        segments = result.segments or ()
        if job.form in _OF_TIMES:
            return _captions(segments, is_vtt=job.form == "vtt")
        found: dict[str, Any] = {
            "task": "transcribe",
            "language": result.language,
            "duration": round(job.seconds, 3),
            "text": result.text,
        }
        if "segment" in job.granularities:
            found["segments"] = [
                {"id": number, "text": one.text, "start": one.start, "end": one.end}
                for number, one in enumerate(segments)
            ]
        if "word" in job.granularities:
            found["words"] = [
                {"word": one.text, "start": one.start, "end": one.end} for one in result.words or ()
            ]
        return found

    def warm_up(self, state: Any) -> None:
        """Transcribe silence."""
        silence = SoundJob(samples=np.zeros(self._sample_rate // 10, np.float32))
        for rows in {1, self.max_batch}:
            self._transcriber.transcribe(state, [silence] * rows)

    def _granularities(self, fields: RequestParser, form: str) -> tuple[str, ...]:
        """Return what a response has times of; by default, `verbose_json` has them of segments."""
        known = self._transcriber.granularities
        found = fields.items(_GRANULARITIES, max_items=2) or []
        if wrong := [one for one in found if one not in known]:
            expected = " or ".join(map(repr, known)) or "none, as this model says no times"
            message = f"{_GRANULARITIES} has {wrong[0]!r:.40}; expected {expected}"
            raise invalid(message, _GRANULARITIES, code="unsupported_value")
        if found and form != "verbose_json":
            message = f"{_GRANULARITIES} needs response_format 'verbose_json', and it is {form!r}"
            raise invalid(message, _GRANULARITIES)
        return tuple(found) if found or form != "verbose_json" else tuple(known[:1])

    def _language(self, fields: RequestParser) -> str | None:
        known = self._transcriber.languages
        if not known:
            fields.ignore("language", "the model has one")
            return None
        language = fields.text("language") or None
        if language is not None and language not in known:
            message = f"language is {language!r:.40}; expected one of {', '.join(known)}"
            raise invalid(message, "language")
        return language


def _captions(segments: Sequence[Span], *, is_vtt: bool) -> str:
    """Return segments as subtitles.

    Source: https://www.w3.org/TR/webvtt1/; SubRip has numbers, and commas in times.
    """
    stamp: Callable[[float], str] = _stamp if is_vtt else lambda s: _stamp(s).replace(".", ",")
    cues = []
    for number, segment in enumerate(segments, 1):
        times, text = f"{stamp(segment.start)} --> {stamp(segment.end)}", segment.text
        if is_vtt:  # which reads tags and entities
            text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        cues.append(f"{times}\n{text}\n" if is_vtt else f"{number}\n{times}\n{text}\n")
    return "\n".join(["WEBVTT\n", *cues] if is_vtt else cues)


def _stamp(seconds: float) -> str:
    millis = round(seconds * 1000)
    hours, minutes = millis // 3_600_000, millis // 60_000 % 60
    return f"{hours:02}:{minutes:02}:{millis // 1000 % 60:02}.{millis % 1000:03}"
