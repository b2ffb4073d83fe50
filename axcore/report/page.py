"""Pages of HTML in one file each: a report of runs, and a picture of a packed batch."""

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import numpy as np

from axcore.data import Batch, Tokenizer
from axcore.markup import embedded_json

REPORT_NAME = "report.html"
"""Of a run's own report, in its directory."""


def run_page_html(
    runs: Sequence[Mapping[str, Any]], *, written: str, is_live: bool = False, part: str = ""
) -> str:
    """Return a page that shows runs, over each other where there are several.

    Args:
        runs: What is known of each, as `axcore.runs.RunFacts` has it, as values of JSON.
        written: When the page is made, as people read it.
        is_live: Whether it asks for `facts.json` next to it again and again.
        part: "profile" where nothing but profiles is shown; everything by default. Of the facts,
            name, directory and profile are enough then.
    """
    page = resources.files("axcore.report").joinpath("run_page.html").read_text("utf-8")
    facts = {"runs": list(runs), "written": written, "is_live": is_live, "part": part}
    page = page.replace("/*BATCH_PAGE*/", embedded_json(_packed_batch_template()))
    return page.replace("/*FACTS*/", embedded_json(facts))


def packed_batch_html(batch: Batch, tokenizer: Tokenizer, *, title: str) -> str:
    """Return a page that shows documents by color, padding, and which tokens the loss counts.

    It shows token, target, segment id, position and loss weight of the place that a reader points
    at. A link that ends in `#ROW,PLACE` opens it there.

    Args:
        batch: What `Data` yields, [B, T] arrays.
        tokenizer: What made its tokens.
        title: What the batch is of.
    """
    content = packed_batch_content(batch, tokenizer, title=title)
    return _packed_batch_template().replace("/*BATCH*/", embedded_json(content))


def _packed_batch_template() -> str:
    """Return the page, with `/*BATCH*/` in the place of what it shows."""
    return resources.files("axcore.report").joinpath("packed_batch.html").read_text("utf-8")


def packed_batch_content(batch: Batch, tokenizer: Tokenizer, *, title: str) -> dict[str, Any]:
    """Return what the page shows, as values of JSON; the arguments are `packed_batch_html`'s."""
    weights, positions = batch["loss_weights"], batch["positions"]
    segments = batch.get("segment_ids")
    if segments is None:  # a row is one segment
        segments = batch.get("token_mask", np.ones_like(batch["tokens"])).astype(np.int32)
    used = np.unique(np.concatenate([batch["tokens"], batch["targets"]]))
    return {
        "title": title,
        "has_segments": "segment_ids" in batch,
        "tokens": batch["tokens"].tolist(),
        "targets": batch["targets"].tolist(),
        "segments": segments.tolist(),
        "positions": positions.tolist(),
        "weights": weights.tolist(),
        "texts": {token: tokenizer.decode([token]) or None for token in used.tolist()},
    }
