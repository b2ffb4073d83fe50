"""Token files of other systems: every document comes once, whole, however a file is cut."""

import os

import numpy as np
import pytest
from stores import built
from token_files import write_llm_c, write_megatron, write_nanogpt

from axcore.config import evolve
from axcore.data import ByteTokenizer, Data, MegatronFiles, TokenFiles
from axcore.data.store import plan
from axcore.errors import ConfigError, DataError

END = 257


@pytest.fixture
def documents():
    rng = np.random.default_rng(0)
    return [np.append(rng.integers(0, 256, size), END) for size in rng.integers(1, 60, 50)]


def read(source):
    return [one.tokens.tolist() for one in source.build().documents()]


def in_parts(source, target):
    made = source.build()
    return [
        document.tokens.tolist()
        for file in made.files()
        for span in made.spans(file, file.path.stat().st_size, target)
        for document in made.records(span)
    ]


def lists(documents):
    return [document.tolist() for document in documents]


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
@pytest.mark.parametrize("target", [1, 64, 300, 10_000])
def test_documents_of_nanogpt_end_with_their_token(tmp_path, documents, dtype, target):
    write_nanogpt(tmp_path / "train.bin", documents, dtype)
    source = TokenFiles.Config(folder=str(tmp_path), dtype=dtype, end_token=END)
    assert read(source) == in_parts(source, target) == lists(documents)


def test_a_last_document_without_an_end_is_not_lost(tmp_path, documents):
    write_nanogpt(tmp_path / "train.bin", [*documents, np.array([1, 2, 3])])
    source = TokenFiles.Config(folder=str(tmp_path), end_token=END)
    assert read(source) == [*lists(documents), [1, 2, 3]]


@pytest.mark.parametrize("target", [1, 300, 1500])
def test_the_header_of_llm_c_is_no_token(tmp_path, documents, target):
    write_llm_c(tmp_path / "train.bin", [np.append(END, one[:-1]) for one in documents])
    source = TokenFiles.Config(folder=str(tmp_path), end_token=END)
    expected = [*lists(documents[:-1]), documents[-1][:-1].tolist()]
    assert read(source) == in_parts(source, target) == expected


@pytest.mark.parametrize(("dtype", "code"), [("<u2", 8), ("<i4", 4), ("<i8", 5)])
@pytest.mark.parametrize("target", [1, 300, 10_000])
def test_documents_of_megatron_are_its_sequences(tmp_path, documents, dtype, code, target):
    write_megatron(tmp_path / "text_document", documents, dtype, code)
    source = MegatronFiles.Config(folder=str(tmp_path))
    assert read(source) == in_parts(source, target) == lists(documents)


def test_another_index_of_megatron_is_another_source(tmp_path, documents):
    write_megatron(tmp_path / "text_document", documents, "<u2", 8)
    source = MegatronFiles.Config(folder=str(tmp_path)).build()
    tokenizer = ByteTokenizer.Config()
    first = plan.plan_identity(source, tokenizer, 0.0)
    tokens = (tmp_path / "text_document.bin").stat()
    write_megatron(tmp_path / "text_document", [np.concatenate(documents)], "<u2", 8)
    os.utime(tmp_path / "text_document.bin", ns=(tokens.st_atime_ns, tokens.st_mtime_ns))
    assert plan.plan_identity(source, tokenizer, 0.0) != first


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda idx: b"what is this, no index at all it seems",
            "is not an index of Megatron's: it begins",
        ),
        (lambda idx: idx[:20], "it is too short"),
        (lambda idx: idx[:-9], "ends before them"),
        (lambda idx: idx[:-8] + bytes(8), "its documents are not its sequences"),
    ],
)
def test_a_damaged_index_is_an_error_with_its_name(tmp_path, documents, damage, message):
    write_megatron(tmp_path / "a", documents)
    path = tmp_path / "a.idx"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=rf"a\.idx .*{message}"):
        read(MegatronFiles.Config(folder=str(tmp_path)))


def test_tokens_that_are_cut_short_are_an_error(tmp_path, documents):
    write_megatron(tmp_path / "a", documents)
    path = tmp_path / "a.bin"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(DataError, match=r"Document 49 of a\.idx is not within the \d+ tokens"):
        read(MegatronFiles.Config(folder=str(tmp_path)))


@pytest.mark.parametrize("kind", [TokenFiles, MegatronFiles])
@pytest.mark.parametrize("values", [{"on_bad": "skip"}, {"max_bad_fraction": 0.1}])
def test_settings_for_bad_records_are_refused_where_there_are_none(tmp_path, kind, values):
    with pytest.raises(ConfigError, match="would change nothing"):
        kind.Config(folder=str(tmp_path), **values).build()


def test_a_file_that_is_no_whole_tokens_is_an_error(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"123")
    with pytest.raises(DataError, match="has 3 bytes, not a multiple of 2"):
        read(TokenFiles.Config(folder=str(tmp_path)))


def test_tokens_that_the_tokenizer_does_not_have_are_refused(tmp_path):
    write_nanogpt(tmp_path / "a.bin", [np.array([5, 300])])
    source = TokenFiles.Config(folder=str(tmp_path), end_token=300)
    cfg = Data.Config(source=source, seq_len=8, batch_size=1, validation_fraction=0.0)
    with pytest.raises(DataError, match=r"a\.bin:0 has the tokens 5 to 300; .* are 0 to 263"):
        cfg.build().train()


@pytest.mark.parametrize("kind", ["nanogpt", "megatron"])
def test_a_store_of_token_files_holds_their_documents(tmp_path, documents, kind, monkeypatch):
    monkeypatch.setattr(plan, "_SMALLEST", 100)
    if kind == "nanogpt":
        write_nanogpt(tmp_path / "a.bin", documents)
        source = TokenFiles.Config(folder=str(tmp_path), end_token=END)
    else:
        write_megatron(tmp_path / "a", documents)
        source = MegatronFiles.Config(folder=str(tmp_path))
    cfg = Data.Config(source=source, seq_len=8, batch_size=1, validation_fraction=0.0)
    store = built(evolve(cfg, tokenizer=ByteTokenizer.Config()), tmp_path / "store")
    train = store.splits["train"]
    assert len(train.shards) > 10
    assert [train.document(i).tolist() for i in range(train.num_documents)] == lists(documents)
