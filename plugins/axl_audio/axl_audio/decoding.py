"""`Transcriber`s: from samples to a text and, where the model says them, the times of its words.

Letters: B rows, T frames, L tokens of a text, V vocabulary.
"""

import itertools
import json
import string
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import NDArray

from axcore.data import Tokenizer
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


_SIZES = (16, 32, 64, 128, 256)
"""Tokens of the texts that programs are compiled for; and the longest that the model has."""

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
        self._encode = jax.jit(partial(functional, model, method="encoded"))
        self._programs: dict[tuple[int, bool], Callable[..., tuple[Array, Array]]] = {}
        self._score = jax.jit(partial(_scores, model))

    def transcribe(self, state: Any, jobs: Sequence[SoundJob]) -> list[Transcript]:
        """Return the transcript of each sound."""
        return [self._transcript(state, job) for job in jobs]

    def _transcript(self, state: Any, job: SoundJob) -> Transcript:
        sound = np.zeros((1, self._num_samples), np.float32)
        sound[0, : len(job.samples)] = job.samples
        encoded, _ = self._encode(state, sound, np.array([len(job.samples)], np.int32))
        language = job.language
        if self._language_ids and language is None:
            language = self._likeliest_language(state, encoded)
        is_timed = job.wants_times and bool(self.granularities)
        prompt = self._prompt(language, job.prompt, is_timed=is_timed)
        tokens = np.full((1, self._max_tokens), self._end, np.int32)
        tokens[0, : len(prompt)] = prompt
        place = len(prompt)
        for size in (*(one for one in _SIZES if one < self._max_tokens), self._max_tokens):
            if size <= place:
                continue
            # Each reads all tokens up to its size for each new one, so short texts cost less.
            masks = [self._suppressed, self._suppressed_first]
            if self._untimed is not None and not is_timed:  # times would be in the text
                masks = [mask | self._is_time for mask in masks]
            some, end = self._program(size, is_timed=is_timed)(
                state, encoded, tokens[:, :size], np.int32(place), np.int32(len(prompt)), *masks
            )
            tokens[:, :size], place = some, int(end)
            if place < size or tokens[0, place - 1] == self._end:
                break
        said = tokens[0, len(prompt) : place].tolist()
        said = said[: said.index(self._end)] if self._end in said else said
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

    def _likeliest_language(self, state: Any, encoded: Any) -> str:
        tokens = np.full((1, 1), self._start, np.int32)
        scores = np.asarray(self._score(state, encoded, tokens, np.int32(0)))[0]
        return max(self._language_ids, key=lambda one: scores[self._language_ids[one]])

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

    def _program(self, size: int, *, is_timed: bool) -> Callable[..., tuple[Array, Array]]:
        key = (size, is_timed)
        if key not in self._programs:
            untimed = self._untimed if is_timed else None
            self._programs[key] = jax.jit(partial(_continued, self._model, self._end, untimed))
        return self._programs[key]


_TICK_S = 0.02
"""Seconds between two of Whisper's tokens of time."""


_MULTILINGUAL = 51_865
"""Size of the smallest vocabulary of a Whisper of many languages; those of English have one less.

Source: `Whisper.is_multilingual` in https://github.com/openai/whisper.
"""


def _scores(model: SpeechToText, state: Any, encoded: Any, tokens: Array, place: Array) -> Array:
    found: Array = functional(model, state, encoded, tokens, place, method="scores")[0]
    return found


def _continued(
    model: SpeechToText,
    end: int,
    untimed: int | None,
    state: Any,
    encoded: Any,
    tokens: Int[Array, "B L"],
    place: Int[Array, ""],
    first: Int[Array, ""],
    suppressed: Bool[Array, " V"],
    suppressed_first: Bool[Array, " V"],
) -> tuple[Int[Array, "B L"], Int[Array, ""]]:
    """Return texts with the likeliest token at each place up to the end, and where that is.

    Args:
        model: The model.
        end: The token that ends a text.
        untimed: The token before those of times, where texts are to have them; else None.
        state: Of the model.
        encoded: Of the sounds.
        tokens: Of the texts, one where they have times.
        place: Of the next token.
        first: Of the first token behind the prompt.
        suppressed: Tokens that no text has.
        suppressed_first: Tokens that it does not begin with.
    """

    def goes_on(carry: tuple[Array, Array]) -> Array:
        tokens, place = carry
        last = jax.lax.dynamic_slice_in_dim(tokens, place - 1, 1, axis=1)
        is_over = (place > first) & jnp.all(last == end)
        return (place < tokens.shape[1]) & ~is_over

    def one(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        tokens, place = carry
        scores = _scores(model, state, encoded, tokens, place - 1)
        hidden = jnp.where(place == first, suppressed_first, suppressed)
        scores = jnp.where(hidden[None, :], -jnp.inf, scores)
        if untimed is not None:
            scores = _with_times(scores[0], tokens[0], place, first, end=end, untimed=untimed)[None]
        best = jnp.argmax(scores, axis=-1)
        found = best.astype(tokens.dtype)[:, None]
        return jax.lax.dynamic_update_slice_in_dim(tokens, found, place, axis=1), place + 1

    return jax.lax.while_loop(goes_on, one, (tokens, place))


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
