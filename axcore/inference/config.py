"""`EngineConfig`: how much an engine serves at once, and in which pieces."""

from typing import Literal

from axcore.config import NonNegativeInt, PositiveInt, config
from axcore.inference.speculation import DraftModel, NGramLookup
from axcore.module import DType


@config
class EngineConfig:
    """Describes an engine.

    Args:
        max_rows: Answers that are drawn at once.
        max_length: Tokens of the longest prompt and answer together; None takes the length that
            the model was trained with.
        page_size: Tokens of a page of the cache; None gives each row one piece of memory for the
            longest text.
        num_pages: Pages of the cache; None takes as many as `max_rows` of the longest texts need,
            or as memory holds where that is less.
        step_tokens: Tokens of prompts that a step reads at most, beside one of each row that draws.
        decode_sizes: Numbers of rows that programs are compiled for; None takes powers of four up
            to `max_rows`.
        tokens_per_call: Tokens of each row that one call draws while nothing waits.
        fixed_shapes: Whether every call has one of two shapes: `max_rows` rows that draw
            `tokens_per_call` tokens, or a row that reads a piece which begins where it begins for
            every such text. Then the bits of an answer do not depend on what else runs; many
            calls compute more than they need.
        draw_kinds: What programs can draw, the cheapest first: "greedy" the likeliest tokens,
            "plain" by a temperature too, "full" by every setting. A call takes the first that
            does for its rows.
        max_queue: Requests that wait at most.
        shares_prefixes: Whether prompts that begin alike are computed once.
        speculation: How tokens are guessed ahead, to be checked by one call: from the text, or by
            a draft model. It takes the place of `tokens_per_call`. None guesses none.
        num_adapters: Adapters that requests may choose from at once.
        adapter_rank: The largest rank of one.
        weights: What linear layers keep their weights in; None keeps what they compute with.
        compute: What layers compute in that were trained in 16 bits; None takes float32 on CPUs,
            where 16 bits are slow, and else 16 bits.
    """

    max_rows: PositiveInt = 16
    max_length: PositiveInt | None = None
    page_size: PositiveInt | None = 16
    num_pages: PositiveInt | None = None
    step_tokens: PositiveInt = 512
    decode_sizes: tuple[PositiveInt, ...] | None = None
    tokens_per_call: PositiveInt = 8
    fixed_shapes: bool = False
    draw_kinds: tuple[Literal["greedy", "plain", "full"], ...] = ("greedy", "full")
    max_queue: PositiveInt = 1024
    shares_prefixes: bool = True
    speculation: NGramLookup | DraftModel | None = None
    num_adapters: NonNegativeInt = 0
    adapter_rank: PositiveInt = 16
    weights: Literal["int8", "int4", "float8"] | None = None
    compute: DType | None = None
