"""`ServingLoad`: what is asked of a model that serves."""

from typing import Literal

import attrs

from axcore.errors import ConfigError


@attrs.frozen(kw_only=True)
class ServingLoad:
    """The calls that programs are compiled for.

    Args:
        rows: Rows that get their next token at once; a program for each.
        prompt: Tokens of a prompt, which one call reads.
        context: Tokens of every row in caches while it decodes.
        page_size: Tokens of a page.
        weights: What linear layers keep their weights in, as an engine's `weights`.
    """

    rows: tuple[int, ...] = attrs.field(default=(1, 8, 64), converter=tuple)
    prompt: int = 512
    context: int = 4096
    page_size: int = 64
    weights: Literal["int8", "int4", "float8"] | None = None

    def __attrs_post_init__(self) -> None:
        """Checks that there is something to compile.

        Raises:
            ConfigError: A number is below 1, or the prompt is longer than the context.
        """
        numbers = (*self.rows, self.prompt, self.context, self.page_size)
        if not self.rows or min(numbers) < 1:
            raise ConfigError(
                f"rows {self.rows}, prompt {self.prompt}, context {self.context} and pages of "
                f"{self.page_size} tokens; expected 1 or more of each"
            )
        if self.prompt > self.context:
            raise ConfigError(
                f"a prompt of {self.prompt} tokens does not fit a context of {self.context}",
                hint=f"--prompt {self.context}, or --context {self.prompt}",
            )

    @property
    def pages_of_row(self) -> int:
        """Pages that hold the context of a row."""
        return -(-self.context // self.page_size)
