"""Labelled conversations as batches: pairs of answers, and answers labelled one by one."""

import json

import numpy as np
import pytest

from axcore.config import evolve
from axcore.data import (
    ByteTokenizer,
    ChatFiles,
    ChatMessages,
    ChatPairs,
    LabelledChats,
    PreferenceData,
)
from axcore.errors import DataError

BYTES = ByteTokenizer.Config().build()
QUESTION = {"role": "user", "content": "2+2?"}
CONFIG = PreferenceData.Config(seq_len=64, batch_size=2, validation_fraction=0.0, shuffle=False)


def answer(text):
    return {"role": "assistant", "content": text}


def data(tmp_path, *records, reads=ChatPairs.Config(), **settings):  # noqa: B008 - frozen
    path = tmp_path / "labelled.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return evolve(CONFIG, source=ChatFiles.Config(path=str(path), reads=reads), **settings).build()


def counted(batch, row, index):
    weights = batch["loss_weights"][row, index] > 0
    return BYTES.decode(batch["targets"][row, index][weights])


PAIR = {"prompt": "2+2?", "chosen": "4", "rejected": "five"}


@pytest.mark.parametrize(
    "record",
    [
        PAIR,
        {"prompt": [QUESTION], "chosen": [answer("4")], "rejected": [answer("five")]},
        {"chosen": [QUESTION, answer("4")], "rejected": [QUESTION, answer("five")]},
    ],
)
def test_a_pair_is_one_prompt_with_two_answers_whatever_its_layout(tmp_path, record):
    batch = next(data(tmp_path, record, {**PAIR, "chosen": "Four"}).train())
    assert [counted(batch, 0, index) for index in (0, 1)] == ["4", "five"]
    assert [counted(batch, 1, index) for index in (0, 1)] == ["Four", "five"]
    text = BYTES.decode(batch["tokens"][0, 0])
    assert text == "<user>\n2+2?\n<assistant>\n4\n"[: len(text)]
    assert batch["row_weights"].tolist() == [1, 1]


def test_answers_of_the_prompt_do_not_count(tmp_path):
    before = [QUESTION, answer("4"), {"role": "user", "content": "Sure?"}]
    record = {"prompt": before, "chosen": "Yes", "rejected": "No", "system": "Be short."}
    batch = next(data(tmp_path, record, record, seq_len=128).train())
    assert counted(batch, 0, 0) == "Yes"
    assert BYTES.decode(batch["tokens"][0, 0]).startswith("<system>\nBe short.\n<user>")


def test_a_batch_is_what_its_spec_says(tmp_path):
    for reads, record in (
        (ChatPairs.Config(), PAIR),
        (LabelledChats.Config(), {"prompt": "2+2?", "completion": "4", "label": True}),
    ):
        made = data(tmp_path, record, record, reads=reads)
        batch, spec = next(made.train()), made.batch_spec()
        assert batch.keys() == spec.arrays.keys()
        for name, array in batch.items():
            assert (array.shape, str(array.dtype)) == (
                spec.arrays[name].shape,
                spec.arrays[name].dtype,
            )


def test_a_rated_answer_is_beside_one_of_another_prompt(tmp_path):
    records = [
        {"prompt": "2+2?", "completion": "4", "label": True},
        {"messages": [{"role": "user", "content": "3+3?"}, answer("no idea")], "label": False},
    ]
    batch = next(data(tmp_path, *records, reads=LabelledChats.Config()).train())
    assert batch["is_good"].tolist() == [1, 0]
    assert [counted(batch, 0, 0), counted(batch, 0, 1)] == ["4", "no idea"]
    assert BYTES.decode(batch["tokens"][0, 1]).startswith("<user>\n2+2?\n<assistant>\nno idea")
    assert [counted(batch, 1, 0), counted(batch, 1, 1)] == ["no idea", "4"]


def test_what_is_too_long_is_said(tmp_path, capfd):
    records = [PAIR, {**PAIR, "chosen": "4" * 200}, {**PAIR, "prompt": "?" * 200}]
    made = data(tmp_path, *records)
    assert made.summary().train_rows == 2
    assert (
        "1 rows lost the end of an answer, and 1 of which no answer fits" in capfd.readouterr().err
    )
    batch = next(made.train())
    assert set(counted(batch, 1, 0)) == {"4"}
    assert np.all(batch["loss_weights"][1, 0, -30:] == 1)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"prompt": "a", "chosen": "b"}, "has no field 'rejected'"),
        ({"chosen": "b", "rejected": "c"}, "There is no prompt"),
        ({**PAIR, "chosen": [QUESTION]}, "has no message of 'assistant'"),
        ({**PAIR, "rejected": [{"role": "wizard", "content": ""}]}, "has the role 'wizard'"),
    ],
)
def test_a_bad_pair_is_named_or_left_out_and_counted(tmp_path, record, message):
    with pytest.raises(DataError, match=message) as e:
        data(tmp_path, PAIR, record).summary()
    assert e.value.where.endswith("labelled.jsonl:2")
    skipping = data(tmp_path, PAIR, record).config
    source = evolve(skipping.source, on_bad="skip")
    with pytest.warns(UserWarning, match="1 of 2 lines left out"):
        assert evolve(skipping, source=source).build().summary().train_rows == 1


def test_a_label_is_true_or_false(tmp_path):
    record = {"prompt": "a", "completion": "b", "label": 1}
    with pytest.raises(DataError, match="Field 'label' contains 1, not true or false"):
        data(tmp_path, record, reads=LabelledChats.Config()).summary()


def test_conversations_that_nobody_labelled_are_refused(tmp_path):
    record = {"messages": [QUESTION, answer("4")]}
    with pytest.raises(DataError, match="is not a labelled conversation"):
        data(tmp_path, record, reads=ChatMessages.Config()).summary()


def test_a_run_resumes_over_the_same_judgements_only(tmp_path):
    batches = data(tmp_path, PAIR, {**PAIR, "chosen": "Four"}, PAIR, PAIR).train()
    next(batches)
    state, wanted = batches.get_state(), next(batches)
    again = data(tmp_path, PAIR, {**PAIR, "chosen": "Four"}, PAIR, PAIR).train()
    again.set_state(state)
    np.testing.assert_array_equal(next(again)["tokens"], wanted["tokens"])
    with pytest.raises(DataError):
        data(tmp_path, PAIR, PAIR, PAIR, PAIR).train().set_state(state)


def test_processes_share_each_batch(tmp_path):
    made = data(tmp_path, PAIR, {**PAIR, "chosen": "Four"}, batch_size=2)
    whole = next(made.train())["tokens"]
    parts = [next(made.train(process_index=i, process_count=2))["tokens"] for i in (0, 1)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))


def test_held_out_rows_are_padded_to_whole_batches(tmp_path):
    records = [{**PAIR, "chosen": str(n)} for n in range(60)]
    made = data(tmp_path, *records, validation_fraction=0.2)
    batches = list(made.validation())
    held = made.summary().validation_rows
    assert held + made.summary().train_rows == 60
    assert sum(batch["row_weights"].sum() for batch in batches) == held > 0


def test_without_targets_the_last_token_is_read_too(tmp_path):
    with_targets, without = (
        next(data(tmp_path, PAIR, PAIR, has_targets=has_targets).train())
        for has_targets in (True, False)
    )
    assert without.keys() == {"tokens", "token_mask", "row_weights"}
    for place in np.ndindex(2, 2):
        read = with_targets["token_mask"][place]
        whole = [*with_targets["tokens"][place][read], with_targets["targets"][place][read][-1]]
        assert without["tokens"][place][without["token_mask"][place]].tolist() == whole


def test_without_targets_a_sequence_is_cut_to_the_row(tmp_path, capsys):
    long = {**PAIR, "chosen": "4" * 80}
    built = data(tmp_path, long, PAIR, has_targets=False, seq_len=40)
    batch = next(built.train())
    assert batch["token_mask"][0, 0].all()
    assert batch["tokens"].shape == built.batch_spec().arrays["tokens"].shape == (2, 2, 40)
    assert "1 rows lost the end of an answer" in capsys.readouterr().err
