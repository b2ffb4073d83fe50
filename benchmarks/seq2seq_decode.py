"""Time per token of a Whisper's text: by a cache, and by all of the decoder for each token.

    python benchmarks/seq2seq_decode.py

A model of the size of whisper-tiny with random weights writes texts of some lengths for one sound
of thirty seconds; both ways take turns. The second way is what axcore did before it had a cache:
the decoder reads a row of the text's full length for each token. Texts are short, as the second
way would take minutes for the 448 tokens that a Whisper may write. The encoder's time is apart.
"""

import statistics
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _record import record
from axl_audio.models import whisper
from axl_audio.speech_to_text import SpeechToText

from axcore.inference import Seq2SeqGenerator
from axcore.layers import CrossSource, whole_rows
from axcore.module import entry, functional

SAMPLES, SOURCE, NEVER = 480_000, 1500, 51_864
"""Of a row; the tokens that the encoder makes of it; a token that random weights do not choose."""

PROMPT = np.zeros((1, 1), np.int32)
LENGTHS, ROUNDS = (32, 128), 3


class WholeDecoder(SpeechToText):
    """A model that reads all of a text for the token after one of its places."""

    @entry
    def scores(self, source: Any, tokens: Any, place: Any) -> Any:
        """Return logits of the token after one place, `[B, V]`."""
        hidden = self._decoded(CrossSource(source), tokens, whole_rows(tokens))
        last = jax.lax.dynamic_slice_in_dim(hidden, place, 1, axis=1)
        return self.head(last, self.decoder.embedding.weight)[:, 0]


def whole_decoder(model: WholeDecoder, length: int) -> Any:
    """Return the program that reads all of the text for each token."""

    def write(state: Any, source: Any) -> Any:
        def one(place: Any, tokens: Any) -> Any:
            scores, _ = functional(model, state, source, tokens, place - 1, method="scores")
            found = jnp.argmax(scores, axis=-1)
            found = found.astype(tokens.dtype)[:, None]
            return jax.lax.dynamic_update_slice_in_dim(tokens, found, place, axis=1)

        return jax.lax.fori_loop(1, length, one, jnp.zeros((1, length), jnp.int32))

    return jax.jit(write)


def timed(call: Any) -> float:
    """Return the seconds of a call."""
    begin = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - begin


def main() -> None:
    """Measure, print and record."""
    model, again = whisper("tiny").build(), WholeDecoder(whisper("tiny"))
    state = jax.jit(model.init)(0)
    sound = 0.1 * np.random.default_rng(0).standard_normal((1, SAMPLES)).astype(np.float32)
    inputs = sound, np.array([SAMPLES], np.int32)
    encode = jax.jit(
        lambda state, inputs: (
            functional(model.encoder, state["encoder"], functional(model.features, {}, *inputs)[0])[
                0
            ].tokens
        )
    )
    source = encode(state, inputs)
    figures: dict[str, Any] = {}
    for length in LENGTHS:
        sizes = {"num_rows": 1, "max_tokens": length, "source_length": SOURCE, "end": NEVER}
        generator = Seq2SeqGenerator(model, **sizes)
        program = whole_decoder(again, length)
        times: dict[str, list[float]] = {"cache": [], "whole": [], "encoder": []}
        for number in range(ROUNDS + 1):  # the first compiles
            caches = jax.block_until_ready(generator.encode(state, inputs))
            spent = {
                "cache": timed(lambda g=generator, c=caches: g.generate(state, c, PROMPT)),
                "whole": timed(lambda p=program: p(state, source)),
                "encoder": timed(lambda g=generator: g.encode(state, inputs)),
            }
            for name, seconds in spent.items():
                times[name] += [seconds] * (number > 0)
        caches = generator.encode(state, inputs)
        texts = generator.generate(state, caches, PROMPT)[0], program(state, source)[:, 1:]
        each = {name: statistics.median(some) for name, some in times.items()}
        figures[str(length)] = {
            "cache_ms_a_token": round(1e3 * each["cache"] / (length - 1), 2),
            "whole_ms_a_token": round(1e3 * each["whole"] / (length - 1), 2),
            "whole_by_cache": round(each["whole"] / each["cache"], 1),
            "encoder_ms": round(1e3 * each["encoder"]),
            "same_tokens": float(np.mean(texts[0] == np.asarray(texts[1]))),
        }
        print(length, figures[str(length)], flush=True)
    print(record("seq2seq_decode", figures))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
