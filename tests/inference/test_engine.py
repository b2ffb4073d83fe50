"""An engine gives each request the answer that it would get alone."""

import pytest

from axcore.data import ByteTokenizer
from axcore.inference import Engine, EngineConfig, Generator, Request, Sampling
from axcore.models import transformer

TOKENIZER = ByteTokenizer.Config().build()
GREEDY = Sampling(temperature=0)
LONGEST = 64
SMALL = {"step_tokens": 20, "decode_sizes": (4,), "tokens_per_call": 1}
"""Few shapes, so that little is compiled."""


@pytest.fixture(scope="module")
def model():
    cfg = transformer(vocab_size=264, dim=16, num_layers=1, num_heads=2, hidden_dim=16)
    built = cfg.build()
    return built, built.init(0)


def config(**values):
    return EngineConfig(**{"max_rows": 4, "max_length": LONGEST, "page_size": 8, **SMALL, **values})


def request(text, max_tokens, **values):
    prompt = tuple(int(token) for token in TOKENIZER.encode_prompt(text))
    return Request(prompt=prompt, max_tokens=max_tokens, **{"sampling": GREEDY, **values})


@pytest.mark.slow
def test_greedy_answers_are_those_of_a_generator(model):
    generator = Generator(*model, TOKENIZER, context=LONGEST)
    texts = ("ab", "abcdefgh" * 4, "x", "the quick", "y" * 30)
    with Engine(*model, TOKENIZER, config()) as engine:
        answers = [engine.submit(request(text, 20)) for text in texts]
        for text, answer in zip(texts, answers, strict=True):
            (alone,) = generator.generate(text, max_tokens=20, sampling=GREEDY)
            assert answer.result(60).text == alone.text
        assert engine.stats().num_drawn == 100
