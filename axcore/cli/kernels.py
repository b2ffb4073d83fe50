"""`axcore kernels`: every kernel of an op, and why it serves some hardware or not."""

import json
from typing import Any

import click

from axcore.cli.table import columns
from axcore.config import name_the_known
from axcore.errors import KernelError
from axcore.plugins import Hardware, Kernel, Op, plugin_host


@click.command()
@click.argument("op", required=False)
@click.option("--target", metavar="NAME", help="Hardware to ask about; this machine if left out.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def kernels(op: str | None, target: str | None, as_json: bool) -> None:
    """List the kernels of OP, or of every op, and why each fits the hardware or does not.

    The first that fits and also accepts a call's shapes and dtypes serves that call.
    """
    candidates = _candidates(op)
    hardware = Hardware.parse(target) if target else Hardware.detect()
    rows = [_described(kernel, hardware) for kernel in candidates]
    if as_json:
        click.echo(json.dumps({"target": hardware.name, "kernels": rows}, indent=2))
        return
    click.echo(f"target {hardware.name}")
    cells = [(r["op"], r["name"], str(r["priority"]), r["plugin"], _verdict(r)) for r in rows]
    click.echo(columns(("OP", "KERNEL", "PRIORITY", "PLUGIN", "FITS"), cells))


def _candidates(op: str | None) -> list[Kernel]:
    host = plugin_host()
    ops = {record.name for record in host.records(Op)}
    if op is not None and op not in ops:
        raise KernelError(f"there is no op {op!r}; {name_the_known(op, ops)}")
    found = [kernel for kernel in host.records(Kernel) if op in (None, kernel.op)]
    return sorted(found, key=lambda kernel: (kernel.op, -kernel.priority, kernel.name))


def _described(kernel: Kernel, hardware: Hardware) -> dict[str, Any]:
    return {
        "op": kernel.op,
        "name": kernel.name,
        "priority": kernel.priority,
        "plugin": kernel.plugin,
        "why_not": kernel.why_not_on(hardware),
    }


def _verdict(row: dict[str, Any]) -> str:
    return "yes" if row["why_not"] is None else f"no: {row['why_not']}"
