"""What tests of token stores share."""

import json

import numpy as np
import pytest

from axcore.data import Data, JsonLines
from axcore.data.store import plan


@pytest.fixture
def small_parts(monkeypatch):
    """Parts of a few hundred bytes, so that little text makes many shards."""
    monkeypatch.setattr(plan, "_SMALLEST", 600)


@pytest.fixture
def lines(tmp_path):
    """Two files of JSON lines, of 0 to 50 words each."""
    folder = tmp_path / "lines"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name in "ab":
        texts = [" ".join(map(str, rng.integers(0, 999, rng.integers(0, 50)))) for _ in range(40)]
        content = "\n".join(json.dumps({"text": text}) for text in texts)
        (folder / f"{name}.jsonl").write_text(content)
    return folder


@pytest.fixture
def cfg(lines):
    source = JsonLines.Config(folder=str(lines))
    return Data.Config(source=source, seq_len=32, batch_size=4, validation_fraction=0.2)
