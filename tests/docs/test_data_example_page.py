"""The worked example: its commands and its program do what the page says, in its order."""

import json
import re
import shlex
from pathlib import Path

import pytest
from page_session import run_session
from quick_flags import quick_environment

from axcore.data import open_store

PAGE = Path(__file__).parents[2] / "docs" / "data-example.md"
SHORT = (
    "--set=model.dim=32",
    "--set=model.decoder.stack.num_layers=1",
    "--set=**.hidden_dim=32",
    "--set=data.seq_len=32",
    "--set=data.batch_size=2",
    "--set=data.validation_batches=1",
    "--set=**.warmup_steps=1",
    "--set=max_steps=2",
)


def steps(folder):
    for language, body in re.findall(
        r"^```(\w*)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    ):
        if language == "python":
            (folder / "mix.py").write_text(body)
            yield {"script": str(folder / "mix.py")}
        for line in [] if language else body.splitlines():
            words = shlex.split(line)[1:]
            yield {"command": [*words, *(SHORT if words[0] == "train" else ())]}


@pytest.mark.slow
def test_raw_files_become_a_run(tmp_path):
    for name in ("corpus", "notes"):
        (tmp_path / name).mkdir()
    texts = [f"A page of number {n}. " * (n % 9 + 1) for n in range(90)]
    pages = [{"text": text, "score": n % 3 / 2} for n, text in enumerate(texts)]
    pages += [{"text": "short", "score": 1.0}, pages[1]]
    lines = [json.dumps(page) for page in pages]
    (tmp_path / "corpus" / "pages.jsonl").write_text("\n".join([*lines, "no JSON"]))
    for n in range(40):
        (tmp_path / "notes" / f"{n}.md").write_text(f"# Note {n}\n" + "Some words. " * n)
    found = list(steps(tmp_path))
    assert len(found) == 8
    done, errors = run_session(found, cwd=tmp_path, env=quick_environment())
    assert [one.exit_code for one in done] == [0] * 8, errors
    manifest = open_store(tmp_path / "stores" / "pages").manifest
    assert manifest.dropped == {
        "equal to an earlier document": 1,
        "score is less than 0.5": 30,
        "shorter than 20": 1,
    }
    assert (manifest.records, manifest.bad_records) == (93, 1)
    assert "left out" in done[2].printed
    assert "score is less than 0.5" in done[2].printed
    assert (tmp_path / "pages.html").stat().st_size > 10_000
    assert list((tmp_path / "runs" / "mixture").iterdir())
