"""Batch inference: an answer follows from its prompt, the seed and two numbers, and no more."""

import json

import pytest
from next_letter import NextLetter, letter_chain

from axcore.batch_inference import BatchConfig, BatchInference
from axcore.config import evolve, update_config
from axcore.errors import ConfigError, DataError
from axcore.inference import Sampling
from axcore.runs import OpenedModel, open_model
from axcore.testing.tiny import small_experiment

CONFIG = update_config(
    BatchConfig(num_samples=2, max_tokens=6, num_logprobs=1),
    {"engine.max_num_seqs": 3, "engine.max_num_batched_tokens": 16, "engine.num_decode_steps": 2},
)
PROMPTS = [{"prompt": "The dog" * (1 + number % 3), "id": f"no. {number}"} for number in range(5)]


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """A model of one table, from which samples differ."""
    trainer = small_experiment(tmp_path_factory.mktemp("text")).build()
    size = trainer.data.tokenizer.vocab_size
    state = {"table": letter_chain("The dog", size)["table"] * 0.3}
    model = NextLetter.Config(vocab_size=size).build()
    return OpenedModel(name="letters", trainer=trainer, model=model, state=state)


@pytest.fixture(scope="module")
def answered(opened, tmp_path_factory):
    """The file of answers to all prompts."""
    return answer(opened, tmp_path_factory.mktemp("answered"), PROMPTS)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    small_experiment(folder / "text").build().run(folder / "run")
    return open_model(folder / "run")


@pytest.fixture(scope="module")
def trained_answers(trained, tmp_path_factory):
    return answer(trained, tmp_path_factory.mktemp("trained_answers"), PROMPTS)


def batch(opened, folder, prompts, cfg=CONFIG):
    path = folder / "prompts.jsonl"
    lines = [one if isinstance(one, str) else json.dumps(one) for one in prompts]
    path.write_text("".join(f"{line}\n" for line in lines))
    return BatchInference(opened, path, folder / "answers.jsonl", cfg)


def answer(opened, folder, prompts, cfg=CONFIG):
    batch(opened, folder, prompts, cfg).run()
    return folder / "answers.jsonl"


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_a_line_has_its_prompt_and_its_samples_with_what_was_asked_for(answered):
    lines = lines_of(answered)
    assert [line["index"] for line in lines] == [0, 1, 2, 3, 4]
    for line, prompt in zip(lines, PROMPTS, strict=True):
        assert {name: line[name] for name in prompt} == prompt
        assert len(line["samples"]) == 2
        for one in line["samples"]:
            assert one["num_tokens"] == len(one["tokens"]) == len(one["logprobs"]) <= 6
            assert one["finish_reason"] in ("stop", "length")
            for (best,), logprob in zip(one["top_logprobs"], one["logprobs"], strict=True):
                assert best[1] >= logprob
    assert len({json.dumps(line["samples"]) for line in lines}) == 5


@pytest.mark.slow
def test_a_file_that_was_cut_anywhere_is_completed_to_the_same_bytes(
    trained, trained_answers, tmp_path
):
    whole = trained_answers.read_bytes()
    (tmp_path / "answers.jsonl.run.json").write_bytes(
        trained_answers.with_name("answers.jsonl.run.json").read_bytes()
    )
    for size in (len(whole) // 3, len(whole) - 1, len(whole)):
        (tmp_path / "answers.jsonl").write_bytes(whole[:size])
        assert answer(trained, tmp_path, PROMPTS).read_bytes() == whole


@pytest.mark.slow
def test_an_answer_is_the_same_alone_and_among_others(trained, trained_answers, tmp_path):
    (alone,) = lines_of(answer(trained, tmp_path, PROMPTS[:1]))
    assert alone == lines_of(trained_answers)[0]


@pytest.mark.slow
def test_a_finished_file_is_not_sampled_again(opened, answered):
    before = answered.read_bytes(), answered.stat().st_ino
    done = batch(opened, answered.parent, PROMPTS).run()
    assert (done.num_before, done.num_done, done.num_tokens) == (5, 5, 0)
    assert (answered.read_bytes(), answered.stat().st_ino) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prompts", "change", "said"),
    [
        ([*PROMPTS[:4], {"prompt": "cat"}], {}, "prompts was"),
        (PROMPTS, {"seed": 1}, "config.seed was 0 and is 1"),
        (PROMPTS, {"sampling": Sampling(top_p=0.5)}, "config.sampling.top_p was 1.0 and is 0.5"),
        (PROMPTS, {"num_samples": 3}, "config.num_samples was 2 and is 3"),
    ],
)
def test_answers_of_another_command_are_never_mixed(opened, answered, prompts, change, said):
    before = answered.read_bytes()
    with pytest.raises(DataError) as refused:
        answer(opened, answered.parent, prompts, evolve(CONFIG, **change))
    assert said in refused.value.what
    assert answered.read_bytes() == before


@pytest.mark.slow
def test_other_weights_are_other_answers(opened, answered):
    import attrs
    import jax

    other = attrs.evolve(opened, state=jax.tree.map(lambda leaf: leaf + 0.5, opened.state))
    with pytest.raises(DataError, match="weights was"):
        answer(other, answered.parent, PROMPTS)


def test_bad_lines_stop_the_command_before_it_samples_or_are_answered_by_their_error(
    opened, tmp_path
):
    prompts = ["{", {"prompt": 3, "id": "x"}]  # nothing to sample, so that nothing is compiled
    with pytest.raises(DataError, match=r"line 1 is not JSON.*1 more of 2 lines"):
        batch(opened, tmp_path, prompts)
    assert not (tmp_path / "answers.jsonl").exists()
    lines = lines_of(answer(opened, tmp_path, prompts, evolve(CONFIG, on_error="skip")))
    assert [line["index"] for line in lines] == [0, 1]
    assert "line 1 is not JSON" in lines[0]["error"]
    assert lines[1]["id"] == "x"
    assert "field 'prompt' holds 3" in lines[1]["error"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_logprobs": 21}, "num_logprobs is 21; expected 0 to 20"),
        ({"stop": ("a", "")}, "a stop string is empty"),
        ({"sampling": Sampling(temperature=-1)}, "temperature is -1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(opened, tmp_path, change, said):
    with pytest.raises(ConfigError, match=said):
        batch(opened, tmp_path, PROMPTS, evolve(CONFIG, **change))


def test_answers_are_not_written_over_their_prompts(opened, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a"}\n')
    with pytest.raises(ConfigError, match="prompts and answers are one file"):
        BatchInference(opened, path, path)
    assert path.read_text() == '{"prompt": "a"}\n'
