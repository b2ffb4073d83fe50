"""A model fine-tuned and exported here gives the same scores in transformers."""

import json

import jax
import numpy as np
import pytest
from parity_pairs import load_hf

import axcore as ax
from axcore.experiments.named import load_experiment
from axcore.inference import Engine, EngineConfig, Request, Sampling
from axcore.layers import whole_rows
from axcore.module import functional
from axcore.runs import export_run, load_run
from axcore.testing import small_experiment, trainer_on

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

QUESTIONS = {f"{a}{b}": a for a in "abcdefgh" for b in "stuvwxyz"}
"""Each is answered by its first letter."""

LONGEST = 6


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A run that learned to answer, and what transformers makes of its export."""
    pytest.importorskip("transformers", reason="run make parity")
    folder = tmp_path_factory.mktemp("fine_tuned")
    talks = (
        [{"role": "user", "content": q}, {"role": "assistant", "content": a}]
        for q, a in QUESTIONS.items()
    )
    lines = "".join(json.dumps({"messages": talk}) + "\n" for talk in talks)
    (folder / "chats.jsonl").write_text(lines)
    base = ax.update_config(small_experiment(folder / "texts"), {"mesh": {"fsdp": 1}})
    trainer_on(base, 1).run(folder / "base", quiet=True)
    settings = [
        f"init_from.path={folder / 'base'}",
        f"data.source.path={folder / 'chats.jsonl'}",
        *("data.seq_len=64", "data.batch_size=16", "max_steps=60", "learner.schedule.peak=0.01"),
    ]
    cfg = ax.evolve(load_experiment("sft", settings), mesh={"fsdp": 1})
    trainer_on(cfg, 1).run(folder / "chat", quiet=True)
    run = load_run(folder / "chat")
    export_run(run, folder / "published")
    hf, complaints = load_hf(folder / "published")
    assert not any(complaints.values()), complaints
    return run, hf, run.trainer.data.tokenizer


def prompt_of(tokenizer, question):
    return [int(one) for one in tokenizer.encode_chat([{"role": "user", "content": question}])]


def greedy_here(run):
    """Returns the tokens of each greedy answer, by the engine."""
    tokenizer = run.trainer.data.tokenizer
    few = EngineConfig(
        max_num_seqs=8, max_length=48, max_num_batched_tokens=64, sampler_kinds=("greedy",)
    )
    with Engine(run.model, run.state, tokenizer, few) as engine:
        asked = [
            Request(
                prompt=tuple(prompt_of(tokenizer, question)),
                max_tokens=LONGEST,
                sampling=Sampling(temperature=0.0),
            )
            for question in QUESTIONS
        ]
        answers = [engine.submit(one) for one in asked]
        return [[token.id for token in one.result().tokens] for one in answers]


def greedy_there(hf, tokenizer):
    import torch

    found = []
    for question in QUESTIONS:
        prompt = torch.tensor([prompt_of(tokenizer, question)])
        ids = hf.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=LONGEST,
            do_sample=False,
            eos_token_id=257,
            pad_token_id=258,
        )
        found.append(ids[0, prompt.shape[1] :].tolist())
    return found


def exact_match(answers):
    wanted = [[ord(answer), 257] for answer in QUESTIONS.values()]
    return sum(one == right for one, right in zip(answers, wanted, strict=True)) / len(wanted)


def test_exact_match_of_greedy_answers_is_the_same(both):
    run, hf, tokenizer = both
    axcore, there = greedy_here(run), greedy_there(hf, tokenizer)
    axcore = [[*one, 257] if len(one) < LONGEST and one[-1:] != [257] else one for one in axcore]
    assert axcore == there
    score = exact_match(axcore)
    print(f"exact match {score:.4f} here, {exact_match(there):.4f} in transformers")
    assert score == exact_match(there) > 0.1


def test_log_likelihoods_of_answers_are_the_same(both):
    import torch

    run, hf, tokenizer = both
    prompts = [prompt_of(tokenizer, question) for question in QUESTIONS]
    right = list(QUESTIONS.values())
    answers = [*right[:32], *right[:32]]  # the last half of them are wrong
    rows = np.array([[*p, ord(a), 257] for p, a in zip(prompts, answers, strict=True)], np.int32)

    def read(tokens, targets):
        info = whole_rows(tokens)
        return functional(run.model, run.state, tokens, targets, info, method="log_probs")[0]

    axcore = np.asarray(jax.jit(read)(rows[:, :-1], rows[:, 1:]))[:, -2:].sum(axis=-1)
    with torch.no_grad():
        every = hf(torch.tensor(rows[:, :-1], dtype=torch.long)).logits.log_softmax(-1)
    there = every.gather(-1, torch.tensor(rows[:, 1:], dtype=torch.long)[..., None])[:, -2:, 0]
    np.testing.assert_allclose(axcore, there.sum(-1).numpy(), rtol=1e-4, atol=1e-4)
    assert axcore[:32].min() > axcore[32:].max()
