"""`TokenHistory`: which tokens a text has, for penalties; kept for each slot as caches are.

Letters of shapes: S slots, B rows, T tokens, V vocabulary.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from axcore.inference.drawing.sampling_rows import NO_TOKEN


class TokenHistory(NamedTuple):
    """Counts of tokens, a row for each slot. Methods return a changed copy.

    Args:
        is_prompted: Whether the prompt has a token.
        num_drawn: How often the answer so far has it.
    """

    is_prompted: Bool[Array, "S V"]
    num_drawn: Int[Array, "S V"]

    def take(self, slots: Int[Array, " B"]) -> "TokenHistory":
        """Returns the rows of some slots."""
        return TokenHistory(self.is_prompted[slots], self.num_drawn[slots])

    def started(
        self, slots: Int[Array, " B"], tokens: Int[Array, "B T"], *, lengths: Int[Array, "B 2"]
    ) -> "TokenHistory":
        """Returns the histories with those of some slots that begin again.

        Args:
            slots: Where the texts are; one out of range is left out.
            tokens: Prompt and answer so far of each, filled up with any.
            lengths: Number of tokens of the prompt, and of both.
        """
        place = jnp.arange(tokens.shape[1])[None, :]
        in_prompt = place < lengths[:, :1]
        in_answer = ~in_prompt & (place < lengths[:, 1:])
        cleared = TokenHistory(
            self.is_prompted.at[slots].set(False, mode="drop"),
            self.num_drawn.at[slots].set(0, mode="drop"),
        )
        rows = slots[:, None]
        return TokenHistory(
            cleared.is_prompted.at[rows, _kept(tokens, in_prompt)].set(True, mode="drop"),
            cleared.num_drawn.at[rows, _kept(tokens, in_answer)].add(1, mode="drop"),
        )

    def drawn(self, slots: Int[Array, " B"], tokens: Int[Array, " B"]) -> "TokenHistory":
        """Returns the histories with a drawn token more in some slots; those out of range drop."""
        return self._replace(num_drawn=self.num_drawn.at[slots, tokens].add(1, mode="drop"))


def empty_history(num_slots: int, vocab_size: int) -> TokenHistory:
    """Returns histories of texts without a token."""
    shape = (num_slots, vocab_size)
    return TokenHistory(jnp.zeros(shape, bool), jnp.zeros(shape, jnp.int32))


def _kept(tokens: Int[Array, "B T"], is_kept: Bool[Array, "B T"]) -> Int[Array, "B T"]:
    """Returns tokens, out of any vocabulary where they are not kept."""
    return jnp.where(is_kept, tokens, NO_TOKEN)
