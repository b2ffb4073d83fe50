"""Trained tokenizers: every text comes back, in fewer tokens, and each file can be made again."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from axcore.cli.main import group
from axcore.data.tokenizers.hugging_face_tokenizer import tokenizer_in
from axcore.data.tokenizers.training import SPECIAL_TOKENS, compression, train_tokenizer
from axcore.errors import DataError

CHAT = [{"role": "user", "content": "Hi"}]


def texts():
    return [path.read_text()[:6000] for path in sorted(Path(json.__file__).parent.glob("*.py"))]


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def trained(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    return train_tokenizer(texts(), folder, vocab_size=400, kind=request.param).build()


@pytest.mark.parametrize(
    "text",
    ["", "the model", "  two\n\n\tlines ", "Ünïcödé 漢字 🙂", "\x00\x7f\ufeff", "<|im_end|>"],
)
def test_every_text_comes_back(trained, text):
    assert trained.decode(trained.encode(text)) == text


def test_words_of_the_texts_become_few_tokens(trained):
    found = compression("own", trained, texts())
    assert found.bytes_per_token > 1.5
    assert max(trained.encode(texts()[0])) < trained.vocab_size == 400


def test_marks_are_the_first_tokens_and_a_text_that_writes_one_has_its_characters(trained):
    assert [trained.encode_written(mark).tolist() for mark in SPECIAL_TOKENS] == [[0], [1], [2]]
    assert len(trained.encode("<|im_end|>")) > 1


def test_an_answer_ends_with_its_mark_and_chats_are_chatml(trained):
    assert set(trained.end_ids) == {0, 2}
    rendered = trained.encode_chat(CHAT).tolist()
    assert rendered[0] == 1
    assert rendered.count(1) == 2


def test_the_same_texts_give_the_same_file(tmp_path):
    for name in ("a", "b"):
        train_tokenizer(texts(), tmp_path / name, vocab_size=400)
    first, second = (tmp_path / name / "tokenizer.json" for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(("size", "hint"), [(259, "above 259"), (90000, "more text")])
def test_a_vocabulary_without_room_or_text_for_it_is_refused(tmp_path, size, hint):
    with pytest.raises(DataError) as caught:
        train_tokenizer(texts(), tmp_path / "t", vocab_size=size)
    assert hint in caught.value.hint
    assert not (tmp_path / "t").exists()


def test_the_tokenizer_of_a_folder_is_not_written_over(tmp_path):
    (tmp_path / "tokenizer.json").write_text("mine")
    with pytest.raises(DataError, match="file already exists"):
        train_tokenizer(texts(), tmp_path, vocab_size=400)
    assert (tmp_path / "tokenizer.json").read_text() == "mine"


def test_the_command_measures_it_on_what_is_held_out_beside_others(tmp_path):
    (tmp_path / "corpus").mkdir()
    pieces = [text[start : start + 500] for text in texts() for start in range(0, 6000, 500)]
    for index, text in enumerate(pieces):
        (tmp_path / "corpus" / f"{index}.txt").write_text(text)
    other = tmp_path / "other"
    train_tokenizer(texts()[:2], other, vocab_size=270)
    source = f"text_files(folder={tmp_path / 'corpus'}, glob=*.txt)"
    command = ["data", "tokenizer", "tiny", str(tmp_path / "own"), "--vocab-size", "400"]
    more = ["--modify", source, "--set", "data.validation_fraction=0.2", "--json"]
    done = CliRunner().invoke(group, [*command, "--compare", str(other), *more])
    assert done.exit_code == 0, done.exception
    own, compared, plain = json.loads(done.stdout)
    assert own["bytes_per_token"] > compared["bytes_per_token"] > plain["bytes_per_token"] == 1
    assert tokenizer_in(tmp_path / "own").build().vocab_size == 400
