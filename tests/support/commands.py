"""Calling axcore's commands in this process."""

from click.testing import CliRunner

from axcore.cli.main import group
from axcore.errors import AxcoreError


def call(*arguments: object) -> str:
    """Returns what a command prints; raises the error that it ends with."""
    result = CliRunner().invoke(group, [str(one) for one in arguments])
    if isinstance(result.exception, AxcoreError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output
