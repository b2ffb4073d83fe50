"""Damaged files of every format: each record comes out, or is counted as bad, or the file is named.

Nothing else may happen: no other exception, and no record that vanishes.
"""

import gzip
import json
import random
import warnings

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from record_files import example_of, tar_of, write_array_record
from token_files import write_megatron, write_nanogpt

from axcore.data import (
    ArrayRecordFiles,
    ArrowFiles,
    HuggingFaceDataset,
    JsonLines,
    MegatronFiles,
    TarFiles,
    TextFiles,
    TokenFiles,
)
from axcore.errors import DataError

ROUNDS = 100
RECORDS = 20
"""Of a file; more than ten thousand in all."""


def texts_of(rng):
    return [
        "".join(rng.choices('ab"\\{}[]:,\n\r\t\0é\u2028\U0001f600', k=rng.randrange(12)))
        for _ in range(RECORDS)
    ]


def json_lines(texts):
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def parquet(texts):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": texts}), sink, row_group_size=6)
    return sink.getvalue().to_pybytes()


def arrow(texts):
    table, sink = pa.table({"text": texts}), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=6)
    return sink.getvalue().to_pybytes()


def damaged(data, rng):
    """Returns bytes flipped, cut off, taken out, put in, or doubled."""
    data = bytearray(data)
    a, b = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    b = min(b, a + 30)
    kind = rng.randrange(5)
    if kind == 0:
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    elif kind == 1:
        del data[a:]
    elif kind == 2:
        del data[a:b]
    elif kind == 3:
        data[a:a] = rng.randbytes(rng.randrange(1, 20))
    else:
        data[a:a] = data[a:b]
    return bytes(data)


def count(source):
    """Returns documents and bad records; None where a file as a whole cannot be read."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            documents = list(source.documents())
        except DataError:
            return None
    names = [document.name for document in documents]
    assert len(set(names)) == len(names)
    return len(documents), sum(int(str(one.message).split()[0]) for one in warned)


LINES = {"": bytes, ".gz": gzip.compress, ".zst": lambda d: zstandard.ZstdCompressor().compress(d)}


@pytest.mark.parametrize("suffix", LINES)
def test_damaged_lines_come_out_or_are_counted(tmp_path, suffix):
    rng, survived = random.Random(suffix), 0
    path = tmp_path / f"a.jsonl{suffix}"
    source = JsonLines.Config(folder=str(tmp_path), glob="*", on_bad="skip").build()
    for _ in range(ROUNDS):
        content = damaged(json_lines(texts_of(rng)), rng)
        packed = LINES[suffix](content)
        path.write_bytes(packed if rng.random() < 0.5 else damaged(packed, rng))
        if (found := count(source)) is None:
            assert suffix
            continue
        is_changed = path.read_bytes() != packed
        lines = [line for line in content.split(b"\n") if line and not line.isspace()]
        assert sum(found) == len(lines) or is_changed
        survived += 1
    assert survived >= ROUNDS // 3


def test_damaged_text_files_come_out_or_are_counted(tmp_path):
    rng = random.Random("text")
    source = TextFiles.Config(folder=str(tmp_path), on_bad="skip").build()
    for _ in range(ROUNDS // 10):
        for number, text in enumerate(texts_of(rng)):
            (tmp_path / f"{number}.txt").write_bytes(damaged(b"." + text.encode(), rng))
        assert sum(count(source)) == RECORDS


@pytest.mark.parametrize(("suffix", "encode"), [(".parquet", parquet), (".arrow", arrow)])
def test_damaged_tables_come_out_or_are_named(tmp_path, suffix, encode):
    rng = random.Random(suffix)
    path = tmp_path / f"a{suffix}"
    source = ArrowFiles.Config(folder=str(tmp_path), glob="*", on_bad="skip").build()
    for _ in range(ROUNDS):
        path.write_bytes(damaged(encode(texts_of(rng)), rng))
        count(source)


@pytest.mark.parametrize("suffix", LINES)
def test_damaged_tars_come_out_or_are_named(tmp_path, suffix):
    rng = random.Random(f"tar{suffix}")
    path = tmp_path / f"a.tar{suffix}"
    source = TarFiles.Config(folder=str(tmp_path), glob="*", on_bad="skip").build()
    for round_number in range(ROUNDS):
        is_inside = round_number % 2
        contents = [b"." + text.encode() for text in texts_of(rng)]
        contents = [damaged(one, rng) if is_inside else one for one in contents]
        whole = tar_of([(f"{number}.txt", one) for number, one in enumerate(contents)])
        path.write_bytes(LINES[suffix](whole if is_inside else damaged(whole, rng)))
        found = count(source)
        assert found is None or sum(found) == RECORDS
        assert found is not None or not is_inside


@pytest.mark.parametrize("record", ["text", "json", "example"])
def test_damaged_array_records_come_out_or_are_counted(tmp_path, record):
    rng = random.Random(record)
    path = tmp_path / "a.array_record"
    cfg = ArrayRecordFiles.Config(folder=str(tmp_path), record=record, on_bad="skip")
    encode = {
        "text": str.encode,
        "json": lambda text: json.dumps({"text": text}).encode(),
        "example": lambda text: example_of({"text": text.encode()}),
    }[record]
    for number in range(ROUNDS // 2):
        records = [encode(text) for text in texts_of(rng)]
        is_inside = number % 2
        if is_inside:
            records = [damaged(one + b" ", rng) for one in records]
        write_array_record(path, records)
        if not is_inside:
            path.write_bytes(damaged(path.read_bytes(), rng))
        found = count(cfg.build())
        assert found is None or sum(found) == RECORDS
        assert found is not None or not is_inside


def test_damaged_saved_datasets_come_out_or_are_named(tmp_path):
    rng = random.Random("saved")
    cfg = HuggingFaceDataset.Config(folder=str(tmp_path), on_bad="skip")
    state = json.dumps({"_data_files": [{"filename": "a.arrow"}]}).encode()
    for number in range(ROUNDS // 2):
        content = arrow(texts_of(rng))
        (tmp_path / "state.json").write_bytes(damaged(state, rng) if number % 2 else state)
        (tmp_path / "a.arrow").write_bytes(content if number % 2 else damaged(content, rng))
        count(cfg.build())


@pytest.mark.parametrize("kind", ["nanogpt", "megatron"])
def test_damaged_tokens_come_out_or_are_named(tmp_path, kind):
    rng = random.Random(kind)
    is_nanogpt = kind == "nanogpt"
    made = TokenFiles.Config(folder=str(tmp_path), end_token=0)
    source = (made if is_nanogpt else MegatronFiles.Config(folder=str(tmp_path))).build()
    for _ in range(ROUNDS):
        documents = [
            [*(rng.randrange(1, 9) for _ in range(rng.randrange(1, 9))), 0] for _ in range(RECORDS)
        ]
        if is_nanogpt:
            write_nanogpt(tmp_path / "a.bin", documents)
        else:
            write_megatron(tmp_path / "a", documents)
        victim = tmp_path / rng.choice(["a.bin"] if is_nanogpt else ["a.bin", "a.idx"])
        victim.write_bytes(damaged(victim.read_bytes(), rng))
        count(source)
