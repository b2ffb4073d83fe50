"""A run as notebooks show it: its state, last losses, a small curve, and where its report is."""

from pathlib import Path

from axcore.errors import CheckpointError
from axcore.markup import Html, card, curve, element, joined, table
from axcore.report.run_page import REPORT_NAME
from axcore.resilience.run_summary import summarise_run
from axcore.runs.metrics import Metrics, read_metrics


def run_html(directory: Path) -> str:
    """Returns what is known of a run as HTML; a damaged file of it is named."""
    summary = summarise_run(directory)
    note = f"run, {summary.state}, step {summary.last_step or 0} of {summary.max_steps}"
    try:
        metrics = read_metrics(directory / "metrics.jsonl")
    except CheckpointError as error:
        shown = element("div", str(error), class_="bad")
    else:
        shown = _losses(metrics)
    return card(str(directory), note, shown, _report_line(directory))


def _losses(metrics: Metrics) -> Html:
    """Returns the last loss of each split, and the curve of the training loss."""
    rows = [
        [split, f"{found['loss'][-1]:.4f}", str(found["step"][-1])]
        for split, found in metrics.items()
        if "loss" in found
    ]
    if not rows:
        return element("div", "nothing is logged yet", class_="soft")
    header = ("split", "last loss", "at step")
    losses = table(header, rows, numbers=header[1:])
    train = metrics.get("train", {})
    if "loss" not in train:
        return losses
    steps, values = train["step"].tolist(), train["loss"].tolist()
    return joined([losses, curve(steps, values, label="training loss over steps")])


def _report_line(directory: Path) -> Html:
    path = directory / REPORT_NAME
    if path.exists():
        return element("div", "report: ", element("code", path))
    command = element("code", f"axcore report {directory}")
    return element("div", command, " writes a report", class_="soft")
