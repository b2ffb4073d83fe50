"""llama.cpp reads every number that a file says: where one is wrong, it computes something else."""

import math
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_models import write_model
from llama_cpp_models import CLOSE, make
from parity_pairs import TOKENS

pytestmark = pytest.mark.parity

UNREAD = ("vocab_size", "context_length")
"""Sizes of which llama.cpp takes the first from the tensors, and of which the other is a limit."""
PROGRAM = Path(__file__).parents[1] / "support" / "llama_cpp_logits.py"
NAMES = ("llama", "llama-yarn", "mixtral", "qwen2-yarn-amplified", "qwen3", "qwen3_moe")
NAMES += ("gemma", "gemma2", "gemma3")
FLOATS = (gguf.GGUFValueType.FLOAT32, gguf.GGUFValueType.FLOAT64)


def change(path, name):
    """Gives a field of a file another value, in place."""
    reader = gguf.GGUFReader(path, "r+")
    field = reader.fields[name]
    is_list = field.types[0] == gguf.GGUFValueType.ARRAY
    value = field.parts[field.data[0]]
    if is_list:
        value[0] = not value[0]
    elif field.types[0] in FLOATS:
        value[0] = 0.3 if name.endswith("epsilon") else 3 * value[0]
    else:
        value[0] = value[0] // 2 if value[0] > 1 else value[0] + 1
    reader.data.flush()


def logits_of(path):
    """Returns the logits that llama.cpp computes with a file; None if it does not."""
    out = path.with_suffix(".npy")
    out.unlink(missing_ok=True)
    command = [sys.executable, PROGRAM, path, out, *TOKENS[0]]
    subprocess.run(list(map(str, command)), capture_output=True, check=False)
    return np.load(out) if out.exists() else None


def is_found(path, expected):
    """Whether llama.cpp refuses a file, or computes other logits."""
    found = logits_of(path)
    if found is None:
        return True
    difference = np.abs(found - expected).max()
    return not math.isfinite(difference) or difference > 10 * CLOSE


@pytest.mark.parametrize("name", NAMES)
def test_every_number_that_is_wrong_is_found(name, tmp_path):
    pytest.importorskip("llama_cpp", reason="run make parity-gguf")
    path = tmp_path / "model.gguf"
    write_model(path, make(name))
    content, expected = path.read_bytes(), logits_of(path)
    assert not is_found(path, expected)
    architecture = gguf.GGUFReader(path).fields["general.architecture"].contents()
    fields = gguf.GGUFReader(path).fields
    numbers = [
        key
        for key, field in fields.items()
        if key.startswith(f"{architecture}.") and not key.endswith(UNREAD)
        if field.types[0] != gguf.GGUFValueType.STRING
    ]
    assert len(numbers) > 8
    missed = []
    for key in numbers:
        path.write_bytes(content)
        change(path, key)
        if not is_found(path, expected):
            missed.append(key)
    assert missed == []
