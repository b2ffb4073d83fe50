"""Files of records in binary formats, for tests."""

import io
import json
import struct
import tarfile

import pyarrow as pa
from array_record.python.array_record_module import ArrayRecordWriter


def write_array_record(path, records):
    writer = ArrayRecordWriter(str(path), "group_size:4")
    for record in records:
        writer.write(record)
    writer.close()


def tar_of(members):
    """Returns a tar of pairs of name and content."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def save_dataset(folder, shards, **state):
    """Writes what `datasets.Dataset.save_to_disk` does."""
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for number, shard in enumerate(shards):
        names.append(f"data-{number:05}-of-{len(shards):05}.arrow")
        table = pa.table({"text": shard})
        with pa.ipc.new_stream(str(folder / names[-1]), table.schema) as writer:
            writer.write_table(table)
    state = {"_data_files": [{"filename": name} for name in names], **state}
    (folder / "state.json").write_text(json.dumps(state))


def example_of(features):
    """Returns a `tf.train.Example` of bytes, integers and floats by name."""
    entries = [_field(1, _field(1, name.encode()) + _field(2, _feature(value)))
               for name, value in features.items()]  # fmt: skip
    return _field(1, b"".join(entries))


def _feature(value):
    if isinstance(value, bytes):
        return _field(1, _field(1, value))
    if isinstance(value, float):
        return _field(2, _field(1, struct.pack("<f", value)))
    return _field(3, _field(1, _varint(value & ((1 << 64) - 1))))


def _field(number, content):
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
