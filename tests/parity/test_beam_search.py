"""Beam search: the sequences and scores that transformers finds."""

import pytest
from model_server import byte_tokenizer
from parity_pairs import make_pair

from axcore.inference import Engine, EngineConfig, Request, beam_search

pytestmark = pytest.mark.parity

PROMPT = (5, 9, 17, 3)
SMALL = EngineConfig(
    max_num_seqs=4,
    max_length=32,
    page_size=4,
    max_num_batched_tokens=16,
    batch_size_buckets=(4,),
    num_decode_steps=1,
)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    pair = make_pair("llama", tmp_path_factory.mktemp("beams") / "llama")
    own = pair.axcore
    with Engine(own.model, own.state, byte_tokenizer(), SMALL) as engine:
        yield pair.hf, engine


@pytest.mark.parametrize("stops_early", [False, True])
@pytest.mark.parametrize("length_penalty", [1.0, -1.0])
def test_beams_and_scores_are_those_of_transformers(llama, length_penalty, stops_early):
    import torch

    hf, engine = llama
    with torch.no_grad():
        # The likeliest next token ends a text here, so that texts of several lengths compete.
        end = int(hf(torch.tensor([PROMPT])).logits[0, -1].argmax())
        found = hf.generate(
            torch.tensor([PROMPT]),
            attention_mask=torch.ones(1, len(PROMPT), dtype=torch.long),
            max_new_tokens=7,
            do_sample=False,
            num_beams=4,
            num_return_sequences=4,
            length_penalty=length_penalty,
            early_stopping=stops_early,
            eos_token_id=end,
            pad_token_id=end,
            return_dict_in_generate=True,
            output_scores=True,
        )
    expected = []
    for row in found.sequences[:, len(PROMPT) :].tolist():
        is_ended = end in row
        expected.append((tuple(row[: row.index(end)] if is_ended else row), is_ended))
    asked = Request(prompt=PROMPT, max_tokens=7)
    beams = beam_search(
        engine,
        asked,
        num_beams=4,
        end_ids=(end,),
        length_penalty=length_penalty,
        stops_early=stops_early,
    )
    assert [(one.tokens, one.finish_reason == "stop") for one in beams] == expected
    assert len({len(tokens) for tokens, _ in expected}) > 1
    scores = found.sequences_scores.tolist()
    assert [one.score for one in beams] == pytest.approx(scores, abs=1e-4)
