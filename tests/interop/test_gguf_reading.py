"""GGUF files are read as the models that they were written from, whatever blocks they are in."""

import json
import struct

import attrs
import gguf
import jax
import numpy as np
import pytest
from gguf_models import tensors_in, write_model
from safetensors.numpy import load_file

from axcore.config import update_config
from axcore.errors import AxcoreError, CheckpointError, ConfigError
from axcore.interop import PretrainedCheckpoint, from_hugging_face, to_hugging_face
from axcore.interop.gguf_header import read_gguf
from axcore.models import llama2, llama3, mistral, mixtral, qwen2

TYPES = [
    name for name in gguf.GGMLQuantizationType.__members__ if name[0] in "BFMQT" or "IQ" in name
]
TYPES = [name for name in TYPES if name not in ("F64", "Q8_1", "Q8_K", "NVFP4", "Q1_0")]
MODELS = {
    "llama2": llama2("toy"),
    "llama3": llama3("toy"),
    "mistral": update_config(mistral("toy"), {"**.core.window": None}),
    "mixtral": mixtral("toy"),
    "qwen2": qwen2("toy"),
}


def write(path, tensors, **metadata):
    """Writes tensors by name: numbers, or bytes of blocks with their type."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    for name, (array, kind) in tensors.items():
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("name", TYPES)
def test_numbers_are_what_the_library_makes_of_blocks(name, tmp_path):
    kind = gguf.GGMLQuantizationType[name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(0)
    blocks = random.integers(0, 256, (37, 512 // block * size)).astype(np.uint8)
    if name == "F32":  # of random bytes some are not numbers, of which bits are compared
        blocks = random.normal(size=(37, 512)).astype(np.float32).view(np.uint8)
    write(tmp_path / "m.gguf", {"a": (blocks, kind), "b": (blocks[:3], kind)})
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(blocks, kind)
    found = read_gguf(tmp_path / "m.gguf").tensors["a"]
    assert found.shape == (37, 512)
    np.testing.assert_array_equal(np.asarray(found.read(), np.float32), expected)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_read_as_it_was_written(name, tmp_path):
    cfg = MODELS[name]
    state = write_model(tmp_path / "model.gguf", cfg)
    found = from_hugging_face(tmp_path / "model.gguf")
    jax.tree.map(np.testing.assert_array_equal, found.state, state)
    assert found.config.published.family == ("llama" if name == "mistral" else cfg_family(name))
    assert found.config.published.max_length == 128
    to_hugging_face(tmp_path / "first", cfg, state)
    to_hugging_face(tmp_path / "again", found.config, found.state)
    first, again = (load_file(tmp_path / one / "model.safetensors") for one in ("first", "again"))
    assert all(np.array_equal(first[key], again[key]) for key in first)
    content = [
        json.loads((tmp_path / one / "config.json").read_text()) for one in ("first", "again")
    ]
    differing = {key for key in content[0] if content[0][key] != content[1].get(key)}
    assert differing <= {"max_position_embeddings", "model_type", "architectures", "sliding_window"}


def cfg_family(name):
    return {"llama2": "llama", "llama3": "llama"}.get(name, name)


@pytest.mark.parametrize("dtype", ["q8_0", "bfloat16", "float16"])
def test_it_becomes_what_most_of_it_is_stored_as(dtype, tmp_path):
    write_model(tmp_path / "model.gguf", llama2("toy"), dtype=dtype)
    published = PretrainedCheckpoint(tmp_path / "model.gguf")
    assert published.dtype == ("bfloat16" if dtype == "q8_0" else dtype)


def test_blocks_are_dequantized_to_the_numbers_that_they_mean(tmp_path):
    file = tmp_path / "model.gguf"
    write_model(file, llama2("toy"), dtype="q8_0")
    with pytest.warns(UserWarning, match=r"\(GGUF's Q8_0\); they are dequantized to float32"):
        found = from_hugging_face(file, dtype="float32")
    means = tensors_in(file)
    up = np.asarray(found.state["decoder"]["stack"]["layer"]["feed_forward"]["up"]["weight"])
    np.testing.assert_array_equal(up[1].T, means["blk.1.ffn_up.weight"])


def test_files_of_llama_cpp_leave_out_what_has_a_default(tmp_path):
    """They have no vocab_size, nor a width of heads, and some have keys that change nothing."""
    file = tmp_path / "model.gguf"
    state = write_model(file, qwen2("toy"))
    content = gguf.GGUFReader(file)
    left_out = ("vocab_size", "key_length", "value_length", "dimension_count")
    metadata = {
        key: one.contents()
        for key, one in content.fields.items()
        if not key.startswith("GGUF.") and not key.endswith((*left_out, "architecture"))
    }
    writer = gguf.GGUFWriter(tmp_path / "theirs.gguf", "qwen2")
    for key, value in {**metadata, "qwen2.expert_count": 0}.items():
        kind = gguf.GGUFValueType.UINT32 if type(value) is int else None
        writer.add_key_value(key, value, kind or gguf.GGUFValueType.get_type(value))
    for tensor in content.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = from_hugging_face(tmp_path / "theirs.gguf")
    jax.tree.map(np.testing.assert_array_equal, found.state, state)


def in_parts(file, folder):
    """Writes a model as two files, the first of which has the metadata."""
    content, halves = gguf.GGUFReader(file), ([], [])
    for i, tensor in enumerate(content.tensors):
        halves[i % 2].append(tensor)
    for number, tensors in enumerate(halves):
        writer = gguf.GGUFWriter(folder / f"m-{number + 1:05}-of-00002.gguf", "llama")
        writer.add_key_value("split.tensors.count", len(content.tensors), gguf.GGUFValueType.INT32)
        for key, field in content.fields.items() if number == 0 else ():
            if not key.startswith("GGUF.") and key != "general.architecture":
                value = field.contents()
                kind = gguf.GGUFValueType.UINT32 if type(value) is int else None
                writer.add_key_value(key, value, kind or gguf.GGUFValueType.get_type(value))
        for tensor in tensors:
            writer.add_tensor(tensor.name, tensor.data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def test_a_model_in_several_files_is_read_by_the_name_of_any(tmp_path):
    state = write_model(tmp_path / "model.gguf", llama2("toy"))
    in_parts(tmp_path / "model.gguf", tmp_path)
    for number in (1, 2):
        found = from_hugging_face(tmp_path / f"m-{number:05}-of-00002.gguf")
        jax.tree.map(np.testing.assert_array_equal, found.state, state)


def test_a_file_of_several_that_is_missing_is_named(tmp_path):
    write_model(tmp_path / "model.gguf", llama2("toy"))
    in_parts(tmp_path / "model.gguf", tmp_path)
    (tmp_path / "m-00001-of-00002.gguf").unlink()
    with pytest.raises(CheckpointError, match=r"of which 1 are missing: m-00001-of-00002\.gguf"):
        from_hugging_face(tmp_path / "m-00002-of-00002.gguf")


def damaged(data, what):
    """Returns the bytes of a file with one fault."""
    if what == "magic":
        return b"GGML" + data[4:]
    if what == "version":
        return data[:4] + struct.pack("<I", 9) + data[8:]
    if what == "counts":
        return data[:8] + struct.pack("<QQ", 2**60, 2**60) + data[24:]
    if what == "truncated":
        return data[:-40]
    if what == "header":
        return data[:300]
    if what == "type":
        at = data.index(b"output_norm.weight") + len(b"output_norm.weight") + 4 + 8
        return data[:at] + struct.pack("<I", 99) + data[at + 4 :]
    return data[:10]


FAULTS = {
    "magic": "does not begin as a GGUF file does",
    "version": "it has version 9 of the format",
    "counts": "it is truncated: .* values do not fit",
    "truncated": "it is truncated: .* ends at byte",
    "header": "it is truncated",
    "type": "output_norm.weight has numbers of type 99, which is not read",
    "start": "a header alone has 24 bytes",
}


@pytest.mark.parametrize("what", FAULTS)
def test_damaged_files_are_errors_by_name(what, tmp_path):
    file = tmp_path / "model.gguf"
    write_model(file, llama2("toy"))
    file.write_bytes(damaged(file.read_bytes(), what))
    with pytest.raises(CheckpointError, match=FAULTS[what]) as error:
        from_hugging_face(file)
    assert "hint: " in str(error.value)


def test_random_damage_is_an_error_or_reads(tmp_path):
    """Whatever bytes of the header are changed; nothing hangs, and no other error escapes."""
    file, random = tmp_path / "model.gguf", np.random.default_rng(0)
    write_model(file, llama2("toy"))
    data = np.frombuffer(file.read_bytes(), np.uint8)
    for _ in range(200):
        changed = data.copy()
        changed[random.integers(0, 1200, 3)] = random.integers(0, 256, 3)
        file.write_bytes(changed.tobytes())
        try:
            read_gguf(file)
        except CheckpointError:
            continue


def test_a_key_that_could_matter_is_an_error(tmp_path):
    tensors = {"token_embd.weight": (np.zeros((8, 32), np.float32), None)}
    sizes = {"block_count": 1, "embedding_length": 32, "attention.head_count": 2}
    metadata = {f"llama.{key}": value for key, value in sizes.items()}
    write(tmp_path / "m.gguf", tensors, **metadata, **{"llama.attention.scale": 0.5})
    with pytest.raises(ConfigError, match=r"so that numbers .*:\nllama\.attention\.scale=0\.5"):
        from_hugging_face(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("block_count", 2**31, "num_hidden_layers is 2147483648; no tensor has more than"),
        ("attention.head_count", 0, "does not say what num_attention_heads are"),
        ("rope.freq_base", "fast", "rope.freq_base='fast'; axcore reads a number"),
        ("attention.value_length", 3, "attention.key_length=16; axcore reads"),
    ],
)
def test_numbers_that_cannot_be_are_errors(key, value, words, tmp_path, monkeypatch):
    write_model(tmp_path / "model.gguf", llama2("toy"))
    real = read_gguf(tmp_path / "model.gguf")
    changed = attrs.evolve(real, metadata={**real.metadata, f"llama.{key}": value})
    monkeypatch.setattr("axcore.interop.gguf_checkpoint.read_gguf", lambda path: changed)
    with pytest.raises(AxcoreError, match=words) as error:
        from_hugging_face(tmp_path / "model.gguf")
    assert "hint: " in str(error.value)


def test_a_type_of_model_that_no_family_has_is_an_error(tmp_path):
    file = tmp_path / "model.gguf"
    write_model(file, llama2("toy"))
    data = file.read_bytes().replace(b"llama", b"mamba")
    file.write_bytes(data)
    with pytest.raises(
        ConfigError, match=r"llama\.cpp's type 'mamba'; these are read: llama, qwen2"
    ):
        from_hugging_face(file)


def test_tensors_that_are_missing_or_unknown_are_named(tmp_path):
    file = tmp_path / "model.gguf"
    write_model(file, llama2("toy"))
    file.write_bytes(file.read_bytes().replace(b"blk.1.ffn_up", b"blk.1.ffn_us"))
    with pytest.raises(
        CheckpointError, match=r"up_proj\.weight is missing\nblk\.1\.ffn_us\.weight is"
    ):
        from_hugging_face(file)


def test_a_run_begins_with_a_file_as_with_a_folder(tmp_path):
    cfg = llama2("toy")
    state = write_model(tmp_path / "model.gguf", cfg)
    to_hugging_face(tmp_path / "folder", cfg, state)
    file, folder = (PretrainedCheckpoint(tmp_path / one) for one in ("model.gguf", "folder"))
    wanted = jax.tree.map(
        lambda one: one.abstract,
        cfg.build().param_specs(),
        is_leaf=lambda one: hasattr(one, "abstract"),
    )
    jax.tree.map(np.testing.assert_array_equal, file.read(cfg, wanted), folder.read(cfg, wanted))
