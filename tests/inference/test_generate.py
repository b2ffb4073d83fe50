"""Generating text: right tokens, independent samples, and ends that end."""

import jax.numpy as jnp
import numpy as np
import pytest

from axcore.config import REQUIRED, config
from axcore.data import ByteTokenizer
from axcore.errors import ConfigError
from axcore.inference import Engine, EngineConfig, Generator, Request, Sampling
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


@pytest.mark.slow
def test_greedy_text_is_the_likeliest_token_after_each_prefix(generator):
    (sampled,) = generator.generate("ab", max_tokens=6, sampling=Sampling(temperature=0))
    tokens = list(TOKENIZER.encode_prompt("ab"))
    for _ in range(6):
        window = jnp.asarray([tokens[-CONTEXT:]])
        logits, _ = functional(generator.model, generator.state, window, method="logits")
        row = np.array(logits[0, -1])
        row[[TOKENIZER.bos_id, TOKENIZER.pad_id]] = -np.inf
        row[TOKENIZER.vocab_size :] = -np.inf
        tokens.append(int(row.argmax()))
    assert sampled.text == TOKENIZER.decode(tokens[3:])
    assert sampled.num_tokens == 6


def test_special_tokens_of_a_prompt_are_these_tokens_unless_that_is_switched_off():
    generator = scripted((TOKENIZER.eos_id, ord("x")), (ord(">"), ord("y")))
    options = {"max_tokens": 1, "sampling": Sampling(temperature=0)}
    assert generator.generate("a<|end|>", **options)[0].text == "x"
    assert generator.generate("a<|end|>", parses_special=False, **options)[0].text == "y"
    once = TOKENIZER.encode_prompt("<|begin|>a", parses_special=True)
    assert once.tolist() == TOKENIZER.encode_prompt("a").tolist()


def test_the_window_slides_over_a_text_longer_than_the_context():
    a, b = ord("a"), ord("b")
    (sampled,) = scripted((a, b), (b, a)).generate("a" * 40, max_tokens=30)
    assert sampled.text == "ba" * 15


@pytest.mark.slow
def test_top_k_of_one_is_greedy_at_any_temperature(generator):
    greedy = generator.generate("x", max_tokens=8, sampling=Sampling(temperature=0))
    assert (
        generator.generate("x", max_tokens=8, sampling=Sampling(temperature=9.0, top_k=1)) == greedy
    )


def test_samples_of_one_prompt_differ_from_their_first_token_on():
    hot = Sampling(temperature=3.0)
    sampled = scripted().generate("x", max_tokens=1, num_samples=40, sampling=hot, seed=0)
    assert len({one.text for one in sampled}) > 16


@pytest.mark.slow
def test_a_sample_does_not_depend_on_how_many_are_drawn_beside_it(generator):
    hot = Sampling(temperature=3.0)
    two = generator.generate("x", max_tokens=6, num_samples=2, sampling=hot, seed=5)
    assert generator.generate("x", max_tokens=6, num_samples=2, sampling=hot, seed=5) == two
    assert generator.generate("x", max_tokens=6, num_samples=2, sampling=hot, seed=6) != two
    assert generator.generate("x", max_tokens=6, sampling=hot, seed=5) == two[:1]


def test_an_end_token_in_first_place_ends_the_text():
    (sampled,) = scripted((ord("x"), TOKENIZER.eos_id)).generate("x", max_tokens=9)
    assert (sampled.text, sampled.num_tokens, sampled.is_ended) == ("", 0, True)


def test_a_text_ends_at_any_of_the_tokens_that_end_one():
    class TwoEnds(ByteTokenizer):
        end_ids = (TOKENIZER.eos_id, ord("."))

    generator = scripted((ord("x"), ord("y")), (ord("y"), ord(".")))
    generator.tokenizer = TwoEnds.Config().build()
    (sampled,) = generator.generate("x", max_tokens=9, sampling=Sampling(temperature=0))
    assert (sampled.text, sampled.is_ended) == ("y", True)


@pytest.mark.slow
def test_tokens_that_are_no_text_are_never_drawn():
    width = TOKENIZER.vocab_size + 8  # a model wider than the tokenizer
    cfg = EngineConfig(
        max_num_seqs=4, max_length=CONTEXT, max_num_batched_tokens=20, batch_size_buckets=(4,)
    )
    for banned in (TOKENIZER.bos_id, TOKENIZER.pad_id, width - 1):
        model = Scripted.Config(vocab_size=width, script=((ord("x"), banned),)).build()
        with Engine(model, {}, TOKENIZER, cfg) as engine:
            asked = [Request(prompt=(ord("x"),), max_tokens=1, seed=seed) for seed in range(24)]
            answers = [engine.submit(one).result(60) for one in asked]
        sampled = [token.id for answer in answers for token in answer.tokens]
        assert banned not in sampled
        assert max(sampled) < TOKENIZER.vocab_size


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_tokens": 1, "num_samples": 0}, "num_samples 0"),
        ({"max_tokens": 1, "sampling": Sampling(temperature=-1)}, "temperature is -1.0"),
        ({"max_tokens": 1, "sampling": Sampling(top_k=0)}, "top_k is 0"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(generator, arguments, text):
    with pytest.raises(ConfigError, match=text):
        generator.generate("x", **arguments)
