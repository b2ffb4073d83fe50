"""The same text behind gzip, zstd or a byte order mark gives the same documents."""

import gzip
import json

import pytest
import zstandard
from record_files import tar_of

from axcore.data import ChatFiles, Data, JsonLines, TarFiles, TextFiles
from axcore.errors import DataError

MARK = "\ufeff".encode()
TEXTS = ["zwö\n", "three \u2028 words", " \ufeff inside"]
LINES = b"".join(json.dumps({"text": text}).encode() + b"\r\n" for text in TEXTS)
WRAPPERS = {
    "a": lambda data: data,
    "b.mark": lambda data: MARK + data,
    "c.gz": gzip.compress,
    "d.GZ": lambda data: gzip.compress(MARK + data),
    "e.zst": zstandard.ZstdCompressor().compress,
    "f.Zst": lambda data: zstandard.ZstdCompressor().compress(MARK + data),
    "g.gzip_without_its_suffix": gzip.compress,
    "h.zstd_without_its_suffix": zstandard.ZstdCompressor().compress,
}
wrapped = pytest.mark.parametrize(("suffix", "wrap"), WRAPPERS.items(), ids=WRAPPERS)


def write(folder, suffix, data):
    (folder / f"x.{suffix}").write_bytes(data)
    return {"folder": str(folder), "glob": "*"}


@wrapped
def test_a_text_file_is_the_same_document(tmp_path, suffix, wrap):
    where = write(tmp_path, suffix, wrap("zwö\r\n\ufeff".encode()))
    assert [d.text for d in TextFiles.Config(**where).build().documents()] == ["zwö\r\n\ufeff"]


@wrapped
def test_json_lines_lose_no_record(tmp_path, suffix, wrap):
    where = write(tmp_path, suffix, wrap(LINES))
    assert [d.text for d in JsonLines.Config(**where).build().documents()] == TEXTS


def test_a_mark_before_each_line_or_alone_is_skipped(tmp_path):
    lines = MARK + b"\n" + b"".join(MARK + line + b"\n" for line in LINES.splitlines()) + MARK
    where = write(tmp_path, "jsonl", lines)
    assert [d.text for d in JsonLines.Config(**where).build().documents()] == TEXTS


@pytest.mark.parametrize("suffix", ["a", "c.gz", "e.zst", "g.gzip_without_its_suffix"])
def test_the_text_of_a_tar_is_the_same(tmp_path, suffix):
    members = [("1.txt", "zwö".encode()), ("2.txt", MARK + b"two")]
    where = write(tmp_path, suffix, WRAPPERS[suffix](tar_of(members)))
    assert [d.text for d in TarFiles.Config(**where).build().documents()] == ["zwö", "two"]


@wrapped
def test_a_conversation_is_the_same(tmp_path, suffix, wrap):
    line = b'{"messages": [{"role": "user", "content": "a"}]}\n'
    write(tmp_path, suffix, wrap(line))
    source = ChatFiles.Config(path=str(tmp_path / f"x.{suffix}")).build()
    assert [list(d.fields) for d in source.documents()] == [["messages"]]


@pytest.mark.parametrize("wrap", [WRAPPERS["b.mark"], gzip.compress], ids=["mark", "gzip"])
def test_tokens_and_their_digest_are_the_same(tmp_path, wrap):
    digests = set()
    for name, data in {"plain": LINES, "wrapped": wrap(LINES)}.items():
        (tmp_path / name).mkdir()
        source = JsonLines.Config(**write(tmp_path / name, "jsonl", data))
        cfg = Data.Config(source=source, seq_len=8, batch_size=1, validation_fraction=0.0)
        digests.add(cfg.build().train().identity["tokens"])
    assert len(digests) == 1


@pytest.mark.parametrize("wrap", [WRAPPERS["b.mark"], gzip.compress], ids=["mark", "gzip"])
def test_a_file_read_in_pieces_loses_no_record(tmp_path, wrap):
    source = JsonLines.Config(**write(tmp_path, "jsonl", wrap(LINES * 20))).build()
    (file,) = source.files()
    spans = list(source.spans(file, file.state()[0], target=30))
    assert [d.text for span in spans for d in source.read(span)] == TEXTS * 20


def test_what_is_named_gzip_and_is_not_is_refused(tmp_path):
    where = write(tmp_path, "GZ", LINES)
    with pytest.raises(DataError, match=r"x.GZ cannot be decompressed: Not a gzipped file"):
        list(JsonLines.Config(**where).build().documents())


def test_a_key_twice_in_a_line_is_an_error_that_names_it(tmp_path):
    where = write(tmp_path, "jsonl", b'{"text": "a"}\n{"text": "b", "text": "c"}\n')
    with pytest.raises(DataError, match=r"line 2 is not JSON.*the key 'text' is twice"):
        list(JsonLines.Config(**where).build().documents())
