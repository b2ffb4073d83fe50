"""The picture of a batch holds all of it, and asks nobody for anything."""

import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

from axcore.cli.data import data as command
from axcore.config import evolve
from axcore.data import Data, JsonLines, build_store
from axcore.report.page import packed_batch_html


@pytest.fixture
def cfg(tmp_path):
    records = [{"text": f"number {n} </script><b>é " * (1 + n % 5)} for n in range(20)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, records)))
    source = JsonLines.Config(folder=str(tmp_path))
    return Data.Config(source=source, seq_len=64, batch_size=4, validation_fraction=0.0)


def content(page):
    """What a browser would find in the page."""
    (found,) = re.findall(r'<script id="batch"[^>]*>(.*?)</script>', page, re.DOTALL)
    return json.loads(found)


@pytest.mark.parametrize("masks", [True, False])
@pytest.mark.parametrize("packing", ["concatenate", "one_document"])
def test_every_array_of_the_batch_is_in_the_page(cfg, masks, packing):
    data = evolve(cfg, masks_documents=masks, packing=packing).build()
    batch = next(data.train())
    found = content(packed_batch_html(batch, data.tokenizer, title="a batch"))
    names = {"tokens": "tokens", "targets": "targets", "positions": "positions"}
    for name, array in {**names, "weights": "loss_weights"}.items():
        np.testing.assert_array_equal(found[name], batch[array])
    is_real = batch["loss_weights"] > 0
    np.testing.assert_array_equal(np.array(found["segments"]) > 0, is_real)
    if masks:
        np.testing.assert_array_equal(found["segments"], batch["segment_ids"])
    assert found["has_segments"] is masks
    assert found["texts"][str(ord("n"))] == "n"
    assert found["texts"]["257"] is None


def test_the_page_is_one_file_whatever_documents_hold(cfg):
    data = cfg.build()
    page = packed_batch_html(next(data.train()), data.tokenizer, title="</script><i>")
    assert not re.search(r"https?:|src=|@import|url\(", page)
    assert page.count("</script>") == 2
    assert content(page)["title"] == "</script><i>"


def test_the_command_writes_the_first_batch_of_a_store(cfg, tmp_path):
    store, page = tmp_path / "store", tmp_path / "batch.html"
    build_store(cfg.source.build(), cfg.tokenizer, store, validation_fraction=0.0)
    words = ["show", str(store), "--html", str(page), "--rows=4", "--seq-len=64"]
    done = CliRunner().invoke(command, [*words, "--packing=best_fit"], catch_exceptions=False)
    assert done.output == f"{page}: 4 rows of 64 tokens\n"
    expected = next(evolve(cfg, packing="best_fit").build().train())
    np.testing.assert_array_equal(content(page.read_text())["tokens"], expected["tokens"])
