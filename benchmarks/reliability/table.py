"""Writes the tables of docs/reliability.md from the results in benchmarks/results/reliability.

A promise without a result is "not measured", or "not built" where nothing keeps it yet.
"""

import json
from pathlib import Path
from typing import Any

from axcore.report.table import markdown_table, page_with_table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "reliability"
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- table: make reliability -->\n", "<!-- end of table -->"
BEGIN_PEERS = "<!-- table: recovery_peers.py -->\n"
BEGIN_FLEET = "<!-- table: fleet.py -->\n"

PROMISES = {
    "R1": "A run that is killed at any moment resumes with equal bits",
    "R2": "Damage of a checkpoint is noticed, and the newest intact step restored",
    "R3": "At every instant there is a verified checkpoint",
    "R4": "A full, slow or vanished disk costs a warning and a retry, then a clear stop",
    "R5": "A dead process is noticed within a second, and all restart",
    "R6": "Survivors recover without a restart",
    "R7": "No hang is for ever",
    "R8": "Silent corruption is noticed, and the device named",
    "R9": "A loss that is not finite changes nothing; a spike rolls back",
    "R10": "Preemption ends at an agreed step with a checkpoint",
    "R11": "The number of processes may change",
    "R12": "A hot spare takes a lost process's place",
    "R13": "A slow process is named",
    "R14": "A loop of crashes ends with what is known",
    "R15": "No two runs write one directory",
    "R16": "Snapshots in host memory recover without storage",
    "R17": "Object stores keep checkpoints",
    "R18": "Every second has one label, and they add up",
    "R19": "A supervisor that dies leaves no process behind",
    "R20": "All of it costs less than 1 % of step time",
    "R21": "A flipped bit that makes a parameter huge is not saved",
    "R22": "Over several hosts, a lost process, host or leader ends no run",
    "R23": "A device that computes wrongly is named where nothing has a replica",
    "R24": "Several processes without a shared disk keep checkpoints in an object store",
    "R25": "A device that is slow is named",
}
NOT_BUILT: tuple[str, ...] = ()

PEERS = {
    "torchft": "torchft, replicas dead after 1 s of silence",
    "torchft_readme": "torchft, lighthouse as in its README",
    "nvrx_process_quick": "nvidia-resiliency-ext in the process, quick",
    "nvrx_process": "nvidia-resiliency-ext in the process, as in its example",
    "nvrx_launcher": "nvidia-resiliency-ext, `ft_launcher`",
    "axcore_spares": "axcore, from ready spares",
    "axcore": "axcore, without spares",
    "orbax": "jax and Orbax by hand, all relaunched",
}


def table(results: Path = RESULTS) -> str:
    """Return the table in Markdown."""
    rows = [(name, text, *_cells(results / f"{name}.json")) for name, text in PROMISES.items()]
    return markdown_table(("", "promise", "tries", "outcome", "command"), rows) + "\n"


def _cells(path: Path) -> tuple[str, str, str]:
    if not path.exists():
        return "", "not built" if path.stem in NOT_BUILT else "not measured", ""
    result = json.loads(path.read_text(encoding="utf-8"))
    return f"{result['tries']:,}", result["outcome"].replace("|", "/"), f"`{result['command']}`"


def peers_table(path: Path = RESULTS / "recovery_peers.json") -> str:
    """Return how axcore recovers compared with others, in Markdown."""
    result = json.loads(path.read_text(encoding="utf-8"))
    rows = [(text, *_peer_cells(name, result["systems"][name])) for name, text in PEERS.items()]
    made = markdown_table(("", "came back", "next step", "all processes again"), rows)
    systems = result["systems"].values()
    # Not that at the end alone: it may change from one try to the next.
    loads = [try_["load_average_1min"] for one in systems for try_ in one.get("tries", ())]
    return (
        f"{made}\n\nMedians of {result['tries']} kills each, the longest in brackets; "
        f"{result['processes']} processes on {result['hardware']['cores']} cores, load average "
        f"{min(loads):.0f} to {max(loads):.0f}: `{result['command']}`\n"
    )


def _peer_cells(name: str, system: dict[str, Any]) -> tuple[str, str, str]:
    if "skipped" in system:
        return "", system["skipped"], ""
    back = "back_s" if name.startswith("torchft") else "to_step_s"
    first, last = (
        f"{system[f'median_{key}']:.1f} s ({system[f'longest_{key}']:.1f} s)"
        if f"median_{key}" in system
        else "never"
        for key in ("to_step_s", back)
    )
    return f"{system['came_back']} of {len(system['tries'])}", first, last


def fleet_table(path: Path = RESULTS.parent / "fleet.json") -> str:
    """Return what each mechanism is worth in a simulated fleet, in Markdown."""
    result = json.loads(path.read_text(encoding="utf-8"))
    figures = result["figures"]
    parts = ("useful", "saving", "lost_work", "noticing", "restarting")
    rows = [
        (name, *(f"{row[part]:.1%}" for part in parts)) for name, row in figures["rows"].items()
    ]
    head = ("", "useful", "saving", "work lost", "until noticed", "starting again")
    check = figures["check"]
    return (
        f"{markdown_table(head, rows)}\n\n{figures['chips']:,} chips, means of 20 simulations of "
        f"{figures['days']:g} days. The check: {check['kills']} kills in {check['seconds']:.0f} s "
        f"of a real run of two processes left {check['real']:.1%}, the simulation of it "
        f"{check['simulated']:.1%}. `{result['command']}`\n"
    )


def page_with_tables(page: str) -> str:
    """Return the page with all tables between their marks."""
    page = page_with_table(page, table(), BEGIN, END)
    page = page_with_table(page, fleet_table(), BEGIN_FLEET, END)
    return page_with_table(page, peers_table(), BEGIN_PEERS, END)


if __name__ == "__main__":
    PAGE.write_text(page_with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
