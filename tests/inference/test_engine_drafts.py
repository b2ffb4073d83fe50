"""A draft model makes an engine's steps fewer, and changes no answer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from next_letter import NextLetter
from parity_pairs import MODELS
from scipy.stats import chisquare

from axcore.data import ByteTokenizer
from axcore.errors import ConfigError
from axcore.inference import Draft, DraftModel, Engine, EngineConfig, NGramLookup, Request, Sampling
from axcore.inference.grammar import regex
from axcore.models import transformer
from axcore.modifiers import KVCache
from axcore.plugins import Hardware

TOKENIZER = ByteTokenizer.Config().build()
MODEL = transformer(vocab_size=264, dim=16, num_layers=2, num_heads=2, hidden_dim=16).build()
SMALLER = transformer(vocab_size=280, dim=8, num_layers=1, num_heads=1, hidden_dim=8).build()
SIZES = {
    "sampler_kinds": ("full",),
    "max_num_seqs": 3,
    "max_length": 48,
    "page_size": 4,
    "max_num_batched_tokens": 18,
    "batch_size_buckets": (3,),
}
SAMPLINGS = [
    Sampling(temperature=0),
    Sampling(temperature=1.0, top_k=3),
    Sampling(temperature=0.3, presence_penalty=1.0, repetition_penalty=1.2),
]


def draft_of(model, seed=3):
    return Draft(model=model, state=model.init(seed), tokenizer=TOKENIZER)


def answers(requests, draft=None, **values):
    speculation = DraftModel(num_tokens=3) if draft else None
    cfg = EngineConfig(**{**SIZES, "speculation": speculation, **values})
    with Engine(MODEL, MODEL.init(3), TOKENIZER, cfg, draft=draft) as engine:
        submitted = [engine.submit(one) for one in requests]
        return [answer.result(120) for answer in submitted], engine.stats()


def requests(**values):
    prompts = ["abcabcabcab", "abcabcabcabcabcabcabx"]
    return [
        Request(prompt=tuple(prompt.encode()), max_tokens=20, sampling=sampling, seed=1, **values)
        for prompt in prompts
        for sampling in SAMPLINGS
    ]


@pytest.fixture(scope="module")
def plain():
    return answers(requests(), num_decode_steps=1)


@pytest.mark.slow
def test_a_draft_equal_to_the_model_is_always_right_and_saves_steps(plain):
    found, stats = answers(requests(), draft_of(MODEL))
    assert found == plain[0]
    assert stats.num_accepted_draft_tokens == stats.num_draft_tokens > 60
    assert stats.num_steps < plain[1].num_steps / 2


@pytest.mark.slow
@pytest.mark.parametrize("num_pages", [14, None])
def test_answers_are_those_without_a_draft_also_where_pages_run_out(plain, num_pages):
    found, stats = answers(requests(), draft_of(SMALLER), num_pages=num_pages)
    assert [one.tokens for one in found] == [one.tokens for one in plain[0]]
    assert 0 < stats.num_accepted_draft_tokens < stats.num_draft_tokens
    assert stats.pages_used == 0
    assert stats.num_cached_prompt_tokens > 0
    assert (stats.num_preemptions > 0) == (num_pages is not None)


@pytest.mark.slow
def test_a_prompt_that_was_read_before_is_not_read_by_the_draft_again():
    one = Request(prompt=tuple(b"abcabcabcabcabc"), max_tokens=20, sampling=SAMPLINGS[0])
    cfg = EngineConfig(**SIZES, speculation=DraftModel(num_tokens=3))
    with Engine(MODEL, MODEL.init(3), TOKENIZER, cfg, draft=draft_of(MODEL)) as engine:
        first, again = (engine.submit(one).result(60) for _ in range(2))
        stats = engine.stats()
    assert again.tokens == first.tokens
    assert again.num_cached_prompt_tokens >= 12
    assert stats.num_accepted_draft_tokens == stats.num_draft_tokens > 0


@pytest.mark.slow
def test_answers_with_log_probabilities_and_grammars_are_as_without_a_draft():
    pytest.importorskip("llguidance")
    asked = [*requests(num_logprobs=2, prompt_logprobs=True)[:2]]
    asked.append(requests(grammar=regex("(ab|c){4,8}"))[1])
    expected, _ = answers(asked)
    found, _ = answers(asked, draft_of(SMALLER))
    for one, other in zip(found, expected, strict=True):
        assert [token.id for token in one.tokens] == [token.id for token in other.tokens]
        for name in ("logprob", "top_logprobs"):
            own, theirs = ([getattr(t, name) for t in x.tokens] for x in (one, other))
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), own, theirs)
        assert (one.prompt_logprobs is None) == (other.prompt_logprobs is None)


def table_of(noise):
    """Returns a state in which letters follow each other, and the draft's with some noise."""
    table = np.full((264, 264), -30.0, np.float32)
    letters = slice(ord("a"), ord("f"))
    table[letters, letters] = np.random.default_rng(0).normal(0, 1.2, (5, 5))
    table[letters, letters] += noise * np.random.default_rng(1).normal(0, 1, (5, 5))
    return {"table": jnp.asarray(table)}


@pytest.mark.slow
def test_drawn_tokens_pass_a_chi_square_test():
    model = NextLetter.Config(vocab_size=264).build()
    draft = Draft(model=model, state=table_of(noise=0.7), tokenizer=TOKENIZER)
    values = {**SIZES, "max_num_seqs": 8, "batch_size_buckets": (8,), "max_num_batched_tokens": 128}
    cfg = EngineConfig(**values, speculation=DraftModel(num_tokens=3))
    hot = Sampling(temperature=0.9)
    with Engine(model, table_of(noise=0), TOKENIZER, cfg, draft=draft) as engine:
        submitted = [
            engine.submit(Request(prompt=(97,), max_tokens=47, sampling=hot, seed=seed))
            for seed in range(64)
        ]
        found = [answer.result(60) for answer in submitted]
        stats = engine.stats()
    assert 0.4 < stats.num_accepted_draft_tokens / stats.num_draft_tokens < 0.95
    assert stats.num_accepted_draft_tokens > 1000
    counts = np.zeros((5, 5))
    for answer in found:
        letters = [0, *(token.id - ord("a") for token in answer.tokens)]
        np.add.at(counts, (letters[:-1], letters[1:]), 1)
    logits = np.asarray(table_of(noise=0)["table"], np.float64)[97:102, 97:102] / 0.9
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for row, wanted in zip(counts, expected, strict=True):
        assert chisquare(row, wanted * row.sum()).pvalue > 1e-4


@pytest.mark.slow
def test_new_weights_are_taken_over_beside_the_draft():
    one = Request(prompt=tuple(b"abcabc"), max_tokens=20, sampling=SAMPLINGS[1])
    cfg = EngineConfig(**SIZES, speculation=DraftModel(num_tokens=3))
    with Engine(MODEL, MODEL.init(3), TOKENIZER, cfg, draft=draft_of(MODEL, 4)) as engine:
        engine.submit(one).result(60)
        before = engine.stats()
        engine.replace_weights(MODEL.init(4))
        engine.submit(one).result(60)
        after = engine.stats()
    assert before.num_accepted_draft_tokens < before.num_draft_tokens
    added = after.num_draft_tokens - before.num_draft_tokens
    assert after.num_accepted_draft_tokens - before.num_accepted_draft_tokens == added > 0


class OtherTokens(ByteTokenizer):
    """A tokenizer whose numbers mean other bytes."""

    def encode_many(self, texts):
        return [tokens[::-1] for tokens in super().encode_many(texts)]


def test_a_draft_of_another_vocabulary_is_refused():
    larger = ByteTokenizer.Config().build()
    larger.vocab_size = 300
    for tokenizer, text in (
        (larger, r"is not that of the model: one has 300 tokens, the other 264"),
        (OtherTokens.Config().build(), "they write the same text in other tokens"),
    ):
        draft = Draft(model=SMALLER, state=SMALLER.init(0), tokenizer=tokenizer)
        with pytest.raises(ConfigError, match=text) as caught:
            answers([], draft)
        assert "a smaller model of the same family" in caught.value.hint


@pytest.mark.slow
def test_a_draft_that_could_not_be_used_is_refused():
    sliding = KVCache(layout="sliding", page_size=2).apply(
        MODELS["mistral"](), Hardware.parse("cpu-1")
    )
    with pytest.raises(ConfigError, match="a layer of the model or of its draft keeps a state"):
        answers([], draft_of(sliding.build()))
    with pytest.raises(ConfigError, match="asks for a draft model, and there is none"):
        answers([], speculation=DraftModel())
    with pytest.raises(ConfigError, match="there is a draft model, and speculation is NGram"):
        answers([], draft_of(SMALLER), speculation=NGramLookup())
    with pytest.raises(ConfigError, match="calls of fixed shapes decode a fixed number"):
        answers([], draft_of(SMALLER), fixed_shapes=True, batch_size_buckets=None)
