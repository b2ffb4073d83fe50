"""Drawing text: right tokens, independent samples, and ends that end."""

import jax.numpy as jnp
import numpy as np
import pytest

from axcore.config import REQUIRED, config
from axcore.data import ByteTokenizer
from axcore.errors import ConfigError
from axcore.inference import Generator, Sampling
from axcore.models import transformer
from axcore.module import Module, entry, functional

TOKENIZER = ByteTokenizer.Config().build()
CONTEXT = 12


class Scripted(Module):
    """Gives the token after `t` the logits of row `t` of a fixed table."""

    @config
    class Config(Module.Config):
        vocab_size: int = REQUIRED
        script: tuple[tuple[int, int], ...] = ()

    @entry
    def logits(self, tokens, info=None, at=None):
        table = np.zeros((self.config.vocab_size, self.config.vocab_size), np.float32)
        for before, after in self.config.script:
            table[before, after] = 50.0
        return jnp.take_along_axis(jnp.asarray(table)[tokens], at[:, :, None], axis=1)


def scripted(*script, vocab_size=TOKENIZER.vocab_size):
    model = Scripted.Config(vocab_size=vocab_size, script=script).build()
    return Generator(model, {}, TOKENIZER, context=CONTEXT)


@pytest.fixture(scope="module")
def generator():
    cfg = transformer(vocab_size=264, dim=16, num_layers=1, num_heads=2, hidden_dim=16)
    model = cfg.build()
    return Generator(model, model.init(0), TOKENIZER, context=CONTEXT)


def test_greedy_text_is_the_likeliest_token_after_each_prefix(generator):
    (drawn,) = generator.generate("ab", max_tokens=6, sampling=Sampling(temperature=0))
    tokens = list(TOKENIZER.encode_prompt("ab"))
    for _ in range(6):
        window = jnp.asarray([tokens[-CONTEXT:]])
        logits, _ = functional(generator.model, generator.state, window, method="logits")
        row = np.array(logits[0, -1])
        row[[TOKENIZER.bos_id, TOKENIZER.pad_id]] = -np.inf
        row[TOKENIZER.vocab_size :] = -np.inf
        tokens.append(int(row.argmax()))
    assert drawn.text == TOKENIZER.decode(tokens[3:])
    assert drawn.num_tokens == 6


def test_the_window_slides_over_a_text_longer_than_the_context():
    a, b = ord("a"), ord("b")
    (drawn,) = scripted((a, b), (b, a)).generate("a" * 40, max_tokens=30)
    assert drawn.text == "ba" * 15


def test_top_k_of_one_is_greedy_at_any_temperature(generator):
    greedy = generator.generate("x", max_tokens=8, sampling=Sampling(temperature=0))
    assert (
        generator.generate("x", max_tokens=8, sampling=Sampling(temperature=9.0, top_k=1)) == greedy
    )


def test_samples_of_one_prompt_differ_from_their_first_token_on(generator):
    hot = Sampling(temperature=3.0)
    first = next(generator.stream("x", 1, 16, sampling=hot, seed=0))
    assert len(set(first.tolist())) > 8


def test_a_sample_does_not_depend_on_how_many_are_drawn_beside_it(generator):
    hot = Sampling(temperature=3.0)
    two = generator.generate("x", max_tokens=6, num_samples=2, sampling=hot, seed=5)
    assert generator.generate("x", max_tokens=6, num_samples=2, sampling=hot, seed=5) == two
    assert generator.generate("x", max_tokens=6, num_samples=2, sampling=hot, seed=6) != two


def test_an_end_token_in_first_place_ends_the_text():
    (drawn,) = scripted((ord("x"), TOKENIZER.eos_id)).generate("x", max_tokens=9)
    assert (drawn.text, drawn.num_tokens, drawn.is_ended) == ("", 0, True)


def test_a_text_ends_at_any_of_the_tokens_that_end_one():
    class TwoEnds(ByteTokenizer):
        end_ids = (TOKENIZER.eos_id, ord("."))

    generator = scripted((ord("x"), ord("y")), (ord("y"), ord(".")))
    generator.tokenizer = TwoEnds.Config().build()
    (drawn,) = generator.generate("x", max_tokens=9, sampling=Sampling(temperature=0))
    assert (drawn.text, drawn.is_ended) == ("y", True)


def test_drawing_stops_when_every_sample_has_ended():
    steps = list(
        scripted((ord("x"), ord("y")), (ord("y"), TOKENIZER.eos_id)).stream(
            "x", 50, 3, sampling=Sampling(), seed=0
        )
    )
    assert len(steps) == 2


def test_tokens_that_are_no_text_are_never_drawn():
    width = TOKENIZER.vocab_size + 8  # a model wider than the tokenizer
    for banned in (TOKENIZER.bos_id, TOKENIZER.pad_id, width - 1):
        script = [(ord("x"), banned)]
        step = next(
            scripted(*script, vocab_size=width).stream("x", 1, 64, sampling=Sampling(), seed=0)
        )
        assert banned not in step.tolist()
        assert step.max() < TOKENIZER.vocab_size


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_tokens": 1, "num_samples": 0}, "num_samples 0"),
        ({"max_tokens": 1, "sampling": Sampling(temperature=-1)}, "temperature is -1.0"),
        ({"max_tokens": 1, "sampling": Sampling(top_k=0)}, "top_k is 0"),
        ({"max_tokens": 1, "sampling": Sampling(presence_penalty=1)}, "counts no tokens"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(generator, arguments, text):
    with pytest.raises(ConfigError, match=text):
        generator.generate("x", **arguments)
