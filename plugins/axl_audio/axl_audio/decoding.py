"""`Transcriber`s: from samples to a text and, where the model says them, the times of its words.

Letters: B rows, T frames, L tokens of a text, V vocabulary.
"""

import itertools
import json
import string
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import attrs
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import NDArray

from axcore.data import Tokenizer
from axcore.inference import Seq2SeqGenerator
from axcore.module import functional
from axl_audio.encoder import CTCModel
from axl_audio.sound import Waveform
from axl_audio.speech_to_text import SpeechToText


@attrs.frozen
class Span:
    """A word, or several, and when they are said.

    Args:
        text: The words.
        start: Seconds from the beginning of the sound.
        end: Where the last of them ends.
    """

    text: str
    start: float
    end: float


@attrs.frozen(kw_only=True, eq=False)
class SoundJob:
    """A sound that is to be transcribed.

    Args:
        samples: At the model's rate.
        language: In which it is, as `en`; None lets the model find out.
        prompt: Text before it, which the model continues.
        wants_times: Whether the transcript is to have times.
    """

    samples: Waveform
    language: str | None = None
    prompt: str | None = None
    wants_times: bool = False


@attrs.frozen(kw_only=True)
class Transcript:
    """What a sound says.

    Args:
        text: The text.
        language: As `en`; None where the model has one and does not say which.
        segments: Its parts with their times; None where nobody asked for times, or there are none.
        words: Its words with their times; None as for segments.
    """

    text: str
    language: str | None = None
    segments: tuple[Span, ...] | None = None
    words: tuple[Span, ...] | None = None


class Transcriber(ABC):
    """Writes down sounds.

    Attributes:
        max_batch: Sounds that are transcribed at once at most.
        languages: That a request may name; none where the model has one.
        granularities: What transcripts have times of: of a `segment`, a `word`, or nothing.
        reads_prompts: Whether a text before the sound is read.
    """

    max_batch = 1
    languages: Sequence[str] = ()
    granularities: Sequence[str] = ()
    reads_prompts = False

    @abstractmethod
    def transcribe(self, state: Any, jobs: Sequence[SoundJob]) -> list[Transcript]:
        """Return the transcript of each sound.

        Args:
            state: Of the model.
            jobs: At most `max_batch`.
        """


class CTCTranscriber(Transcriber):
    """The likeliest alignment of a model that was trained by CTC.

    Args:
        model: The model.
        tokenizer: Of its texts.
        sizes: Samples of rows that programs are compiled for, the longest sound last.
        blank: The token that says nothing.
    """

    max_batch = 8
    granularities = ("segment", "word")

    def __init__(
        self, model: CTCModel, tokenizer: Tokenizer, *, sizes: Sequence[int], blank: int
    ) -> None:
        self._tokenizer, self._sizes, self._blank = tokenizer, sizes, blank
        features, strides = model.config.features, model.config.encoder.subsampling.strides
        self._frame_s = features.step * int(np.prod(strides)) / features.sample_rate
        self._program = jax.jit(partial(_likeliest, model, blank))

    def transcribe(self, state: Any, jobs: Sequence[SoundJob]) -> list[Transcript]:
        """Return the transcript of each sound."""
        # Of each size two programs: for one sound, and for as many as there may be.
        rows = 1 if len(jobs) == 1 else self.max_batch
        longest = max(len(job.samples) for job in jobs)
        size = next(one for one in self._sizes if one >= longest)
        sounds, lengths = np.zeros((rows, size), np.float32), np.ones(rows, np.int32)
        for row, job in enumerate(jobs):
            lengths[row] = len(job.samples)
            sounds[row, : lengths[row]] = job.samples
        best = np.asarray(self._program(state, sounds, lengths))
        return [self._transcript(best[row]) for row in range(len(jobs))]

    def _transcript(self, best: NDArray[np.int32]) -> Transcript:
        """Return what the tokens of frames say, of which equal neighbours are one."""
        begins = np.flatnonzero((best != np.append(self._blank, best[:-1])) & (best != self._blank))
        tokens = best[begins].tolist()
        text, spoken = "", []
        for number, begin in enumerate(begins.tolist()):
            # All tokens up to here: a character may have several.
            longer = self._tokenizer.decode(tokens[: number + 1])
            spoken.append((longer[len(text) :] if longer.startswith(text) else "", begin))
            text = longer
        words = self._words(best, spoken)
        return Transcript(text=text.strip(), segments=_segments(words), words=words)

    def _words(
        self, best: NDArray[np.int32], spoken: Sequence[tuple[str, int]]
    ) -> tuple[Span, ...]:
        """Return the words of pieces of text, each of which begins at a frame."""
        found: list[Span] = []
        is_inside = False
        for piece, begin in spoken:
            changes = np.flatnonzero(best[begin:] != best[begin])
            end = begin + (int(changes[0]) if len(changes) else len(best) - begin)
            start_s, end_s = (round(frame * self._frame_s, 3) for frame in (begin, end))
            for letter in piece:
                if letter.isspace():
                    is_inside = False
                elif is_inside:
                    last = found.pop()
                    found.append(Span(last.text + letter, last.start, end_s))
                else:
                    found.append(Span(letter, start_s, end_s))
                    is_inside = True
        return tuple(found)


def _likeliest(
    model: CTCModel, blank: int, state: Any, sound: Array, length: Array
) -> Int[Array, "B T"]:
    """Return the likeliest token of each frame, the blank for padding."""
    logits, is_frame = functional(model, state, sound, length)[0]
    return jnp.where(is_frame, jnp.argmax(logits, axis=-1).astype(jnp.int32), blank)


_PAUSE_S = 1.0
"""Silence between two words that begins another segment."""


def _segments(words: Sequence[Span]) -> tuple[Span, ...]:
    """Return words in groups, with a pause between two of them."""
    found: list[Span] = []
    for word in words:
        if found and word.start - found[-1].end < _PAUSE_S:
            last = found.pop()
            found.append(Span(f"{last.text} {word.text}", last.start, word.end))
        else:
            found.append(word)
    return tuple(found)


_LANGUAGES = (*map("".join, itertools.product(string.ascii_lowercase, repeat=2)), "haw", "yue")
"""What tokens of languages may be called; Whisper has no other tokens of two letters."""


class TokenTranscriber(Transcriber):
    """The likeliest tokens of a `SpeechToText`, which may begin with those that instruct Whisper.

    Without Whisper's special tokens, texts begin with bos and end with eos, as in training here.

    Args:
        model: The model.
        tokenizer: Of its texts.
        num_samples: Samples of a row.
        max_tokens: Tokens of a text at most, those that begin it included.
        suppressed: Tokens that no text has.
        suppressed_first: Tokens that it does not begin with.
        is_instructed: Whether texts begin with Whisper's special tokens, where there are some.

    Source: Radford et al. 2022, arXiv:2212.04356, section 2.3.
    """

    def __init__(
        self,
        model: SpeechToText,
        tokenizer: Tokenizer,
        *,
        num_samples: int,
        max_tokens: int,
        suppressed: Sequence[int] = (),
        suppressed_first: Sequence[int] = (),
        is_instructed: bool = True,
    ) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._num_samples, self._max_tokens = num_samples, max_tokens
        named = tokenizer.added_token
        self._start = named("<|startoftranscript|>") if is_instructed else None
        self._before = named("<|startofprev|>") if is_instructed else None
        self._task, self._untimed = named("<|transcribe|>"), named("<|notimestamps|>")
        self._language_ids = self._named_languages() if self._start is not None else {}
        self.languages = tuple(self._language_ids)
        self.reads_prompts = self._before is not None
        if self._start is not None and self._untimed is not None:
            self.granularities = ("segment",)
        self._end = tokenizer.eos_id
        self._suppressed = self._mask(suppressed)
        self._suppressed_first = self._suppressed | self._mask(suppressed_first)
        numbers = np.arange(model.config.vocab_size)
        self._is_time = numbers >= (self._untimed or len(numbers))
        self._choose = {
            is_timed: partial(_likeliest_token, end=self._end, untimed=untimed)
            for is_timed, untimed in ((False, None), (True, self._untimed))
        }

    @cached_property
    def _generator(self) -> Seq2SeqGenerator:
        # When it is first needed: by then it is known which kernels programs are made of.
        return Seq2SeqGenerator(
            self._model,
            num_rows=1,
            max_tokens=self._max_tokens,
            source_length=self._model.num_source_tokens(self._num_samples),
            end=self._end,
        )

    def transcribe(self, state: Any, jobs: Sequence[SoundJob]) -> list[Transcript]:
        """Return the transcript of each sound."""
        return [self._transcript(state, job) for job in jobs]

    def _transcript(self, state: Any, job: SoundJob) -> Transcript:
        sound = np.zeros((1, self._num_samples), np.float32)
        sound[0, : len(job.samples)] = job.samples
        caches = self._generator.encode(state, (sound, np.array([len(job.samples)], np.int32)))
        language = job.language
        if self._language_ids and language is None:
            language, caches = self._likeliest_language(state, caches)
        is_timed = job.wants_times and bool(self.granularities)
        prompt = np.array([self._prompt(language, job.prompt, is_timed=is_timed)], np.int32)
        masks = [self._suppressed, self._suppressed_first]
        if self._untimed is not None and not is_timed:  # times would be in the text
            masks = [mask | self._is_time for mask in masks]
        tokens, is_text = self._generator.generate(
            state,
            caches,
            prompt,
            choose=self._choose[is_timed],
            arrays=(np.int32(prompt.shape[1]), *masks),
        )
        said = tokens[is_text].tolist()
        if not is_timed:
            return Transcript(text=self._tokenizer.decode(said).strip(), language=language)
        seconds = len(job.samples) / self._model.config.features.sample_rate
        segments = self._timed(said, seconds)
        text = "".join(segment.text for segment in segments).strip()
        segments = tuple(attrs.evolve(one, text=one.text.strip()) for one in segments)
        return Transcript(text=text, language=language, segments=segments)

    def _timed(self, tokens: Sequence[int], seconds: float) -> tuple[Span, ...]:
        """Return the text between two times each, at most as late as the sound ends."""
        assert self._untimed is not None
        first = self._untimed + 1
        found: list[Span] = []
        start, text = 0.0, list[int]()
        for token in (*tokens, None):  # what has no end of its own ends with the sound
            if token is not None and token < first:
                text.append(token)
                continue
            time = seconds if token is None else min(seconds, (token - first) * _TICK_S)
            if text:
                found.append(Span(self._tokenizer.decode(text), round(start, 3), round(time, 3)))
            start, text = time, []
        return tuple(found)

    def _prompt(
        self, language: str | None, before: str | None, *, is_timed: bool = False
    ) -> list[int]:
        """Return the tokens that a text begins with."""
        if self._start is None:
            bos = self._tokenizer.bos_id
            return [self._end if bos is None else bos]
        found: list[int] = []
        if before and self._before is not None:
            # The end of it, as Whisper has it: at most half of the text, less one.
            most = self._max_tokens // 2 - 1
            words = self._tokenizer.encode(" " + before.strip()).tolist()
            found = [self._before, *words[-most:]]
        # Nothing says them to a model of one language.
        named = [] if language is None else [self._language_ids[language], self._task]
        untimed = None if is_timed else self._untimed
        return [one for one in (*found, self._start, *named, untimed) if one is not None]

    def _likeliest_language(self, state: Any, caches: Any) -> tuple[str, Any]:
        """Return the language of a sound, and its caches."""
        logits, caches = self._generator.read(state, caches, np.array([[self._start]], np.int32))
        scores = np.asarray(logits)[0]
        best = max(self._language_ids, key=lambda one: scores[self._language_ids[one]])
        return best, caches

    def _named_languages(self) -> dict[str, int]:
        """Return the tokens of languages by name; none of a model of one language."""
        if self._model.config.vocab_size < _MULTILINGUAL:
            return {}
        named = {one: self._tokenizer.added_token(f"<|{one}|>") for one in _LANGUAGES}
        return {name: token for name, token in named.items() if token is not None}

    def _mask(self, tokens: Sequence[int]) -> Bool[np.ndarray, " V"]:
        found = np.zeros(self._model.config.vocab_size, bool)
        found[[one for one in tokens if 0 <= one < len(found)]] = True
        return found


_TICK_S = 0.02
"""Seconds between two of Whisper's tokens of time."""


_MULTILINGUAL = 51_865
"""Size of the smallest vocabulary of a Whisper of many languages; those of English have one less.

Source: `Whisper.is_multilingual` in https://github.com/openai/whisper.
"""


def _likeliest_token(
    scores: Float[Array, "1 V"],
    tokens: Int[Array, "1 L"],
    place: Int[Array, ""],
    first: Int[Array, ""],
    suppressed: Bool[Array, " V"],
    suppressed_first: Bool[Array, " V"],
    *,
    end: int,
    untimed: int | None,
) -> Int[Array, " 1"]:
    """Return the likeliest token of those that may be at a place of a text.

    Args:
        scores: Of the token at `place`.
        tokens: Of the text.
        place: Of its next token.
        first: Of the first token behind the prompt.
        suppressed: Tokens that no text has.
        suppressed_first: Tokens that it does not begin with.
        end: The token that ends a text.
        untimed: The token before those of times, where the text is to have them; else None.
    """
    hidden = jnp.where(place == first, suppressed_first, suppressed)
    scores = jnp.where(hidden[None, :], -jnp.inf, scores)
    if untimed is not None:
        scores = _with_times(scores[0], tokens[0], place, first, end=end, untimed=untimed)[None]
    return jnp.argmax(scores, axis=-1)


_MAX_FIRST = 50
"""The token of the latest time that a text begins with, one second."""


def _with_times(
    scores: Float[Array, " V"],
    tokens: Int[Array, " L"],
    place: Int[Array, ""],
    first: Int[Array, ""],
    *,
    end: int,
    untimed: int,
) -> Float[Array, " V"]:
    """Return scores by which times are in pairs, grow, and are there where they are likely.

    Args:
        scores: Of the token at `place`.
        tokens: Of a text.
        place: Of its next token.
        first: Of its first token behind the prompt.
        end: The token that ends a text.
        untimed: The token before those of times.

    Source: `ApplyTimestampRules` in https://github.com/openai/whisper.
    """
    places, ids = jnp.arange(len(tokens)), jnp.arange(len(scores))
    is_time = ids > untimed
    is_before = (places >= first) & (places < place) & (tokens > untimed)
    # What came last is a time, and what came before that: one more than there is counts as one.
    last = is_before[jnp.maximum(place - 1, 0)]
    one_before = (place - first < 2) | is_before[jnp.maximum(place - 2, 0)]
    newest = jnp.max(jnp.where(is_before, tokens, 0))
    # The end of a segment may be the beginning of the next one; no segment has length 0.
    is_begun = last & ~one_before
    hidden = (ids == untimed) | (is_time & (ids < newest + jnp.where(is_begun, 0, 1)))
    hidden |= last & one_before & is_time
    hidden |= is_begun & (ids < end)
    at_first = place == first
    hidden |= at_first & (~is_time | (ids > untimed + 1 + _MAX_FIRST))
    scores = jnp.where(hidden, -jnp.inf, scores)
    # Any time together against the likeliest word.
    of_times = jax.nn.logsumexp(jnp.where(is_time, scores, -jnp.inf))
    is_likely = of_times > jnp.max(jnp.where(is_time, -jnp.inf, scores))
    return jnp.where(is_likely & ~is_time, -jnp.inf, scores)


def suppressed_tokens(folder: Path) -> Mapping[str, tuple[int, ...]]:
    """Return what a checkpoint's `generation_config.json` forbids, as `TokenTranscriber` takes it.

    Raises:
        ValueError: The file is damaged.
    """
    path = folder / "generation_config.json"
    found = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    names = {"suppressed": "suppress_tokens", "suppressed_first": "begin_suppress_tokens"}
    return {own: tuple(found.get(name) or ()) for own, name in names.items()}
