"""`axcore kernels`: every kernel of an op, and why it serves some hardware and call or not; and
`axcore kernels tune`, which measures the block sizes of one.
"""

import json
from pathlib import Path

import click

from axcore.cli import options
from axcore.config import suggest_names
from axcore.errors import KernelError
from axcore.plugins import Hardware, HardwareFamily, Op, plugin_host
from axcore.report.table import columns


class _ShowByDefault(click.Group):
    """A group whose command `show` need not be named: `axcore kernels attention`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `show` first where no command is."""
        named = args and args[0] in (*self.commands, *ctx.help_option_names)
        return super().parse_args(ctx, args if named else ["show", *args])


@click.group(cls=_ShowByDefault)
def kernels() -> None:
    """List kernels, and why each is chosen or not; or measure the block sizes of one.

    `axcore kernels [OP] [--target NAME]` is `axcore kernels show`.
    """


@kernels.command()
@click.argument("op", required=False)
@click.option("--target", metavar="NAME", help="Hardware to ask about; this machine if left out.")
@click.option("--all", "show_all", is_flag=True, help="Show kernels of other hardware, too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, of all kernels.")
def show(op: str | None, target: str | None, show_all: bool, as_json: bool) -> None:
    """List the kernels of OP, or of every op, and whether each supports the calls of models.

    Each is checked against a typical call in bfloat16, which is shown; VALIDATED shows whether it
    has run on that chip and was timed there. Where `kernels.choice` matters, each value's kernel is
    shown. Portable kernels must be allowed where the hardware's plugin has kernels for the op.
    """
    from axcore.ops.verdicts import verdicts as verdicts_on

    ops = _ops(op)
    hardware = Hardware.parse(target) if target else Hardware.detect()
    calls = {one.name: one.arg_spec.resolve()() for one in ops if one.arg_spec is not None}
    verdicts = [
        verdict for one in ops for verdict in verdicts_on(one.name, calls.get(one.name), hardware)
    ]
    if as_json:
        listed = [one.as_dict() for one in verdicts]
        texts = {name: str(call) for name, call in calls.items()}
        click.echo(
            json.dumps({"target": hardware.name, "calls": texts, "kernels": listed}, indent=2)
        )
        return
    click.echo(f"target {hardware.name}")
    for call in calls.values():
        click.echo(f"call {call}")
    elsewhere = () if show_all else _plugins_of_other_hardware(hardware)
    shown = [
        one
        for one in verdicts
        if one.unsupported_reason is None or one.kernel.plugin not in elsewhere
    ]
    cells = [
        (
            one.kernel.op,
            one.kernel.name,
            one.kernel.plugin,
            "yes" if one.is_validated else "-" if one.kernel.is_portable else "no",
            one.serves,
        )
        for one in shown
    ]
    click.echo(columns(("OP", "KERNEL", "PLUGIN", "VALIDATED", "SERVES"), cells))
    if len(shown) < len(verdicts):
        click.echo(f"{len(verdicts) - len(shown)} kernels of other hardware: --all shows them")


def _plugins_of_other_hardware(hardware: Hardware) -> set[str]:
    """Return the plugins that bring hardware families, and not that of `hardware`."""
    families = plugin_host().records(HardwareFamily)
    own = {one.plugin for one in families if one.name == hardware.family}
    return {one.plugin for one in families} - own


@kernels.command()
@click.argument("kernel", metavar="OP/KERNEL")
@click.option("--case", "cases", metavar="NAME", multiple=True, help="Time only this call.")
@click.option("--dtype", default="bfloat16", show_default=True, help="Of the calls' arrays.")
@click.option(
    "--repeats",
    default=5,
    show_default=True,
    type=click.IntRange(1),
    help="Measurements of each time.",
)
@click.option(
    "--out",
    metavar="FILE",
    type=options.OutputPath(),
    help="The table to write; by default the plugin's own.",
)
def tune(kernel: str, cases: tuple[str, ...], dtype: str, repeats: int, out: Path | None) -> None:
    """Measure on this machine which block sizes of OP/KERNEL are best, and write the table.

    Calls are those of models, forward and backward; an entry is kept for each chip and kind of
    call. No other command tunes kernels.
    """
    from axcore.cli.kernels_tune import tune_kernel

    tune_kernel(kernel, names=cases, dtype=dtype, repeats=repeats, out=out)


def _ops(name: str | None) -> list[Op]:
    ops = {record.name: record for record in plugin_host().records(Op)}
    if name is not None and name not in ops:
        raise KernelError(f"there is no op {name!r}; {suggest_names(name, ops)}")
    return [ops[one] for one in sorted(ops) if name in (None, one)]
