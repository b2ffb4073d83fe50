"""Draft tokens make an engine's steps fewer, and change no answer."""

import attrs
import pytest

from axcore.data import ByteTokenizer
from axcore.errors import ConfigError
from axcore.inference import Engine, EngineConfig, Request, Sampling
from axcore.inference.grammar import regex
from axcore.inference.speculation import NGramLookup
from axcore.models import transformer

TOKENIZER = ByteTokenizer.Config().build()
CFG = transformer(vocab_size=264, dim=16, num_layers=1, num_heads=2, hidden_dim=16)
SIZES = {
    "sampler_kinds": ("full",),
    "max_num_seqs": 3,
    "max_length": 64,
    "page_size": 4,
    "max_num_batched_tokens": 18,
    "batch_size_buckets": (3,),
}
SAMPLINGS = [
    Sampling(temperature=0),
    Sampling(temperature=1.0, top_k=3),
    Sampling(temperature=0.3, presence_penalty=1.0, repetition_penalty=1.2),
    Sampling(temperature=0, frequency_penalty=0.2),
]


def answers(requests, warms_up=False, **values):
    model = CFG.build()
    cfg = EngineConfig(**{**SIZES, "num_decode_steps": 4, **values})
    with Engine(model, model.init(3), TOKENIZER, cfg) as engine:
        if warms_up:
            engine.warm_up()
        submitted = [engine.submit(one) for one in requests]
        found = [answer.result(120) for answer in submitted]
        # How many cached tokens a request finds depends on when the others were admitted.
        return [attrs.evolve(one, num_cached_prompt_tokens=0) for one in found], engine.stats()


def requests(**values):
    return [
        Request(prompt=tuple(b"abcabcabcab"), max_tokens=44, sampling=sampling, seed=seed, **values)
        for seed in range(2)
        for sampling in SAMPLINGS
    ]


@pytest.fixture(scope="module")
def plain():
    return answers(requests())


@pytest.mark.slow
def test_answers_are_those_without_guesses_also_where_pages_run_out(plain):
    speculation = NGramLookup(num_tokens=3, longest=3, shortest=1)
    found, stats = answers(requests(), speculation=speculation, num_pages=20)
    assert found == plain[0]
    assert stats.num_preemptions > 0
    assert 0 < stats.num_accepted_draft_tokens < stats.num_draft_tokens
    assert stats.pages_used == 0


@pytest.mark.slow
def test_no_guess_compiles_anything(plain):
    found, stats = answers(requests(), warms_up=True, speculation=NGramLookup(shortest=1))
    assert found == plain[0]
    assert stats.num_draft_tokens > 0
    assert stats.compilations_after_warm_up == 0


@pytest.mark.slow
def test_right_guesses_save_steps():
    greedy = [Request(prompt=tuple(b"aaaa"), max_tokens=48, sampling=Sampling(temperature=0))]
    one_by_one, slow = answers(greedy, num_decode_steps=1)
    guessed, fast = answers(greedy, speculation=NGramLookup(num_tokens=3, shortest=1))
    assert guessed == one_by_one
    assert fast.num_accepted_draft_tokens > 10
    assert fast.num_steps <= slow.num_steps - fast.num_accepted_draft_tokens


@pytest.mark.slow
def test_log_probabilities_and_grammars_are_as_without_guesses():
    asked = [*requests(num_logprobs=2)[:2], requests(grammar=regex("(ab|c){4,8}"))[1]]
    expected, _ = answers(asked)
    found, stats = answers(asked, speculation=NGramLookup(num_tokens=3, shortest=1))
    assert stats.num_draft_tokens > 0
    for one, other in zip(found, expected, strict=True):
        assert one.text == other.text
        for a, b in zip(one.tokens, other.tokens, strict=True):
            assert a.id == b.id
            assert a.logprob == pytest.approx(b.logprob, abs=1e-4)
            assert [t for t, _ in a.top_logprobs] == [t for t, _ in b.top_logprobs]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"fixed_shapes": True}, "calls of fixed shapes"),
        ({"page_size": None}, "a layer of the model keeps a state, or a row of its own"),
    ],
)
def test_guesses_that_could_not_be_taken_back_are_refused(values, text):
    model = CFG.build()
    cfg = EngineConfig(**{**SIZES, "speculation": NGramLookup(), **values})
    with pytest.raises(ConfigError, match=text):
        Engine(model, model.init(3), TOKENIZER, cfg)
