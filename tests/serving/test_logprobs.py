"""Log-probabilities in responses: an entry for each token that was sampled."""

import json
from operator import itemgetter

import numpy as np
import pytest
from chat_tokenizer import write_chat_tokenizer
from gguf_tokenizers import pieces
from known_answers import IDENTITY
from model_server import chat_tokenizer, ending_engine, serving

from axcore.evaluation import EngineModel, Likelihood, MultipleChoice, SampleFile, evaluate_tasks
from axcore.inference import SampledToken
from axcore.serving.logprobs import TokenTexts

WORDS = ("a", "to be", "x" * 9, "or not", "zz", "é", "the end.")
QUESTIONS = [
    {
        "prompt": f"Question {number * number}:",
        "choices": [WORDS[number % 7], WORDS[(number + 3) % 7], WORDS[(number * 4 + 1) % 7]],
        "answer": number % 3,
    }
    for number in range(24)
]


@pytest.fixture(scope="module")
def ending(tmp_path_factory):
    """An engine of a model that wants to end after whatever it has read."""
    folder = write_chat_tokenizer(tmp_path_factory.mktemp("ending"))
    with ending_engine(chat_tokenizer(folder)) as engine:
        yield engine


@pytest.fixture(scope="module")
def server(ending):
    with serving(ending) as made:
        yield made


def lm_eval_scores(server, pairs):
    """Returns scores as `local-completions` of lm-eval 0.4.13 asks for them and adds them up."""
    body = {"model": "small", "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234}
    prompts = [context + continuation for context, continuation in pairs]
    reply = server.send("v1/completions", {**body, "prompt": prompts, "echo": True})
    scores = []
    choices = sorted(reply.json["choices"], key=itemgetter("index"))
    for choice, (context, _) in zip(choices, pairs, strict=True):
        logprobs = choice["logprobs"]["token_logprobs"][len(context) : -1]
        likeliest = choice["logprobs"]["top_logprobs"][len(context) : -1]
        best = [max(one.values()) for one in likeliest]
        scores.append((sum(logprobs), logprobs == best))
    return scores


@pytest.mark.slow
def test_scores_by_a_client_of_completions_are_those_of_axcore_evaluate(ending, server, tmp_path):
    """lm-eval drops the last log-probability, that of the one token it lets the model sample."""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in QUESTIONS))
    task = MultipleChoice.Config(samples=SampleFile.Config(path=str(tmp_path / "rows.jsonl")))
    model, right = EngineModel(ending), []
    for row in QUESTIONS:
        asked = [
            Likelihood(context=row["prompt"], continuation=f" {one}") for one in row["choices"]
        ]
        scores = lm_eval_scores(server, [model.encode_pair(one) for one in asked])
        expected = [model.ask(one).reply(60) for one in asked]
        assert [one for one, _ in scores] == pytest.approx([one.logprob for one in expected])
        assert [one for _, one in scores] == [one.is_greedy for one in expected]
        by_length = [one / len(text) for (one, _), text in zip(scores, row["choices"], strict=True)]
        right.append(np.argmax(by_length) == row["answer"])
    found = evaluate_tasks({"t": task}, model, IDENTITY, tmp_path / "found")["t"]
    assert 0 < np.mean(right) < 1
    assert found.metrics["accuracy_per_character"].value == pytest.approx(np.mean(right))


def test_the_bytes_of_tokens_are_those_of_the_text_also_within_a_character(ending):
    texts, tokens = TokenTexts(ending.tokenizer), ending.tokenizer.encode("aé🙂").tolist()
    entries = texts.as_chat([SampledToken(token, -1.0) for token in [*tokens, 257]])["content"]
    assert bytes(byte for one in entries[:-1] for byte in one["bytes"]) == "aé🙂".encode()
    assert (entries[0]["token"], entries[1]["token"]) == ("a", f"token_id:{tokens[1]}")
    assert entries[-1]["bytes"] is None


def test_tokens_of_a_sentencepiece_model_are_written_with_their_spaces(tmp_path):
    tokenizer = pieces(tmp_path / "pieces.model", byte_fallback=True)
    tokens = tokenizer.encode("the text of words").tolist()
    listed, _ = TokenTexts(tokenizer).as_completion([SampledToken(one) for one in tokens], 0)
    assert "".join(listed["tokens"]) == " the text of words"


def test_of_tokens_with_one_text_the_likeliest_is_listed(tmp_path):
    tokenizer = pieces(tmp_path / "pieces.model", byte_fallback=True)
    same: dict[bytes, list[int]] = {}
    for token in range(tokenizer.vocab_size):
        same.setdefault(tokenizer.token_bytes(token), []).append(token)
    first, second = next(found for text, found in same.items() if text and len(found) > 1)[:2]
    drawn = SampledToken(first, -1.0, ((first, -1.0), (second, -2.0)))
    listed, _ = TokenTexts(tokenizer).as_completion([drawn], 0)
    assert list(listed["top_logprobs"][0].values()) == [-1.0]


@pytest.mark.parametrize("path", ["v1/completions", "v1/chat/completions"])
def test_the_end_token_is_listed_and_counted_and_has_no_text(ending, server, path):
    asked = {"prompt": "a", "logprobs": 1}
    if path == "v1/chat/completions":
        asked = {"messages": [{"role": "user", "content": "a"}], "logprobs": True}
    body = {**asked, "temperature": 0, "max_tokens": 5}
    reply = server.send(path, body).json
    (choice,), drawn = reply["choices"], reply["usage"]["completion_tokens"]
    assert (choice["finish_reason"], drawn) == ("stop", 1)
    assert choice.get("text", choice.get("message", {}).get("content")) == ""
    streamed = server.send(path, {**body, "stream": True}).text.split("\n\n")
    pieces = [json.loads(one.removeprefix("data: "))["choices"][0] for one in streamed[:-2]]
    for logprobs in (choice["logprobs"], *(one["logprobs"] for one in pieces if one["logprobs"])):
        listed = logprobs.get("tokens") or [one["token"] for one in logprobs["content"]]
        assert listed == [f"token_id:{ending.tokenizer.eos_id}"]
