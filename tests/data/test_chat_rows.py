"""`ChatText`: conversations with other inputs become rows with soft tokens."""

import json

import numpy as np
import pytest

from axcore.data import ByteTokenizer, ChatText, ExampleData, Feature, FeatureArray, SampleFiles
from axcore.errors import ConfigError
from axcore.layers import FIRST_SOFT_TOKEN

TOKENIZER = ByteTokenizer.Config(special_tokens=("<image>",))
CFG = ChatText.Config(tokenizer=TOKENIZER, length=64, num_soft_tokens=3)
SOFT = [FIRST_SOFT_TOKEN + n for n in range(3)]


def messages(question="<image>what?", answer="yes"):
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def made(found, **changes):
    feature = ChatText.Config(**{"tokenizer": TOKENIZER, "length": 64, **changes}).build()
    return feature.make({"messages": found}, None)


def test_the_mark_of_an_input_becomes_its_soft_tokens():
    row = made(messages(), num_soft_tokens=3)
    text = ByteTokenizer.Config().build()
    before = [256, *text.encode("<user>\n")]
    after = text.encode("what?\n<assistant>\nyes")
    size = len(before) + len(after) + 3
    assert row["tokens"][:size].tolist() == [*before, *SOFT, *after]
    assert row["token_mask"].sum() == size + 1  # and the end; a line end is a target alone
    assert row["positions"].tolist() == [*range(64)]


def test_the_answer_is_learned_and_nothing_else():
    row = made(messages(), num_soft_tokens=3)
    learned = row["targets"][row["loss_weights"] > 0]
    assert learned.tolist() == [*b"yes", 257]


def test_targets_are_the_next_tokens_and_never_soft():
    row = made(messages(), num_soft_tokens=3, role=None)
    soft = np.append(row["tokens"][1:] >= FIRST_SOFT_TOKEN, [False])
    size = row["token_mask"].sum() - 1
    same = row["targets"][:size] == row["tokens"][1 : size + 1]
    assert (same | soft[:size]).all()
    assert not row["loss_weights"][soft].any()
    assert (row["targets"] < 264).all()


def test_parts_of_other_types_are_inputs_too():
    parts = [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "what?"}]
    expected = made(messages(), num_soft_tokens=3)
    found = made(messages(parts), num_soft_tokens=3)
    np.testing.assert_array_equal(found["tokens"], expected["tokens"])


def test_json_and_objects_of_share_gpt_are_read():
    turns = [{"from": "human", "value": "<image>what?"}, {"from": "gpt", "value": "yes"}]
    found = made(json.dumps({"conversations": turns}), num_soft_tokens=3)
    np.testing.assert_array_equal(found["tokens"], made(messages(), num_soft_tokens=3)["tokens"])


def test_a_row_may_have_several_inputs():
    row = made(messages("<image>or<image>?"), num_soft_tokens=3, num_inputs=2)
    soft = row["tokens"][row["tokens"] >= FIRST_SOFT_TOKEN] - FIRST_SOFT_TOKEN
    assert soft.tolist() == [*range(6)]


def test_text_alone_is_a_row_of_a_language_model():
    row = made(messages("what?"))
    assert (row["tokens"] < 264).all()


@pytest.mark.parametrize(
    ("found", "changes", "words"),
    [
        (messages("what?"), {}, "have 0 times '<image>', and a row has 1"),
        (messages("<image><image>"), {}, "have 2 times '<image>', and a row has 1"),
        (messages(), {"length": 8}, "tokens, more than 8"),
        (messages()[:1], {}, "has no message of 'assistant'"),
        ("{", {}, "not JSON|Expecting|expected"),
        ([{"role": "x"}], {}, "has the role 'x'"),
    ],
)
def test_a_bad_record_is_named(found, changes, words):
    with pytest.raises(ValueError, match=words):
        made(found, num_soft_tokens=3, **changes)


def test_pictures_in_messages_need_a_feature_of_inputs():
    with pytest.raises(ValueError, match="expected text, or a list of parts of text"):
        made(messages([{"type": "image"}]))


def test_a_tokenizer_without_the_mark_is_refused():
    with pytest.raises(ConfigError, match="the tokenizer has no such token"):
        ChatText.Config(length=8, num_soft_tokens=3).build()


class Size(Feature):
    """The size of a file."""

    @property
    def fields(self):
        return ("file",)

    def arrays(self):
        return {"": FeatureArray((), "int32")}

    def make(self, record, rng):
        return {"": np.asarray(len(record["file"]), np.int32)}


def test_rows_have_the_names_that_language_models_read(tmp_path, monkeypatch):
    monkeypatch.setenv("AXCORE_DATA_CACHE", str(tmp_path / "cache"))
    for number in range(8):
        (tmp_path / f"{number}.bin").write_bytes(b"x" * number)
        (tmp_path / f"{number}.messages").write_text(json.dumps(messages()))
    data = ExampleData.Config(
        source=SampleFiles.Config(folder=str(tmp_path), glob="*.bin"),
        features={"size": Size.Config(), "chat": CFG},
        batch_size=4,
        validation_fraction=0.0,
    ).build()
    batch = next(data.train())
    names = {"tokens", "targets", "positions", "loss_weights", "token_mask"}
    assert batch.keys() == {*names, "size", "row_weights"}
    assert data.batch_spec().arrays["tokens"].num_values == FIRST_SOFT_TOKEN + 3
    assert (data.tokenizer.vocab_size, data.config.seq_len) == (264, 64)


def test_shapes_are_known_without_files():
    cfg = ExampleData.Config(
        source=SampleFiles.Config(folder="nowhere"), features={"chat": CFG}, batch_size=2
    )
    arrays = cfg.for_shapes().build().batch_spec().arrays
    assert arrays["tokens"].shape == (2, 64)
