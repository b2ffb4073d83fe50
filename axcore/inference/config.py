"""`EngineConfig`: how much an engine serves at once, and in which pieces."""

from typing import Any, Literal

import attrs

from axcore.config import NonNegativeInt, PositiveInt, config
from axcore.errors import ConfigError
from axcore.inference.speculation import DraftModel, NGramLookup
from axcore.module import DType
from axcore.plugins import Hardware


@config
class EngineConfig:
    """Describes an engine.

    Args:
        max_num_seqs: Requests that are decoded at once.
        max_length: Tokens of the longest prompt and answer together; None takes the length that
            the model was trained with.
        page_size: Tokens of a page of the cache; None gives each row one piece of memory for the
            longest text.
        num_pages: Pages of the KV cache; None takes as many as `max_num_seqs` of the longest texts
            need, or as memory holds where that is less.
        max_num_batched_tokens: Tokens of prompts that a step prefills at most; each decoding row
            adds one to them.
        batch_size_buckets: Numbers of rows that programs are compiled for; None takes powers of
            four up to `max_num_seqs`.
        num_decode_steps: Tokens of each row that one call decodes while nothing waits.
        fixed_shapes: Whether every call has one of two shapes: `max_num_seqs` rows that sample
            `num_decode_steps` tokens, or a row that reads a piece which begins where it begins for
            every such text. Then the bits of an answer do not depend on what else runs; many
            calls compute more than they need.
        sampler_kinds: What programs can sample, the cheapest first: "greedy" the likeliest tokens,
            "plain" by a temperature too, "full" by every setting. A call takes the first that
            does for its rows.
        max_queue: Requests that wait at most.
        enable_prefix_caching: Whether prompts that begin alike are computed once.
        speculation: Speculative decoding with draft tokens from the text, or of a draft model. It
            takes the place of `num_decode_steps`. None turns it off.
        num_adapters: Adapters that requests may choose from at once.
        adapter_rank: The largest rank of one.
        weights: What linear layers keep their weights in; None keeps what they compute with.
        compute: What layers compute in that were trained in 16 bits; None takes float32 on CPUs,
            where 16 bits are slow, and else 16 bits.
    """

    max_num_seqs: PositiveInt = 16
    max_length: PositiveInt | None = None
    page_size: PositiveInt | None = 16
    num_pages: PositiveInt | None = None
    max_num_batched_tokens: PositiveInt = 512
    batch_size_buckets: tuple[PositiveInt, ...] | None = None
    num_decode_steps: PositiveInt = 8
    fixed_shapes: bool = False
    sampler_kinds: tuple[Literal["greedy", "plain", "full"], ...] = ("greedy", "full")
    max_queue: PositiveInt = 1024
    enable_prefix_caching: bool = True
    speculation: NGramLookup | DraftModel | None = None
    num_adapters: NonNegativeInt = 0
    adapter_rank: PositiveInt = 16
    weights: Literal["int8", "int4", "float8"] | None = None
    compute: DType | None = None


_SHORTEST_CHUNK = 16
"""Tokens of the shortest pieces that texts are read in, where a step may read as many."""


_MAX_SCORED = 128
"""Tokens of a prompt that are scored at once; there are logits of all of them."""


TOKENS_OF_CALL, TOKENS_OF_CALL_ON_HOST = 256, 16
"""Tokens whose products with a weight take as long as reading it: by an accelerator's operations
and bytes a second, and by a host's, which has about a tenth as many operations for each byte."""


@attrs.frozen
class BatchBuckets:
    """Shapes of calls, the smallest first.

    Args:
        decode_buckets: Numbers of rows that sample.
        chunk_lengths: Numbers of tokens of a row that are read at once.
        prefill_buckets: Numbers of rows for each of those.
        alone_length: That of `chunk_lengths` in which a prompt is read whose tokens are scored.
        chunk_alignment: Tokens; pieces begin at multiples of this.
        tokens_of_call: Tokens that take as long as a call does whatever it reads.
        prefills_by_score: Whether every text is read by the program that scores its tokens: one
            program fewer to compile, which computes more.
    """

    decode_buckets: tuple[int, ...]
    chunk_lengths: tuple[int, ...]
    prefill_buckets: tuple[tuple[int, ...], ...]
    alone_length: int
    chunk_alignment: int = 1
    tokens_of_call: int = 0
    prefills_by_score: bool = False

    @property
    def limits(self) -> dict[str, Any]:
        """What they mean for a schedule: fields of `SchedulerConfig`."""
        return {
            "chunk_lengths": self.chunk_lengths,
            "prefill_buckets": self.prefill_buckets,
            "tokens_of_call": self.tokens_of_call,
            "alone_length": self.alone_length,
            "chunk_alignment": self.chunk_alignment,
        }

    def decode_bucket(self, num_rows: int) -> int:
        """Return the rows of the program that samples for so many."""
        return next(size for size in self.decode_buckets if size >= num_rows)

    def prefill_bucket(self, num_rows: int, length: int) -> int:
        """Return the rows of the program that reads so many tokens of so many rows."""
        sizes = self.prefill_buckets[self.chunk_lengths.index(length)]
        return next(size for size in sizes if size >= num_rows)


def batch_buckets(cfg: EngineConfig, hardware: Hardware | None = None) -> BatchBuckets:
    """Return the shapes of an engine's calls.

    Args:
        cfg: The engine's.
        hardware: Decides in which of them texts are read; None is any accelerator.

    Raises:
        ConfigError: The sizes do not fit together.
    """
    if cfg.fixed_shapes:
        return _fixed_shapes(cfg)
    decode_buckets = tuple(sorted(cfg.batch_size_buckets or _grown(1, cfg.max_num_seqs, 4)))
    if decode_buckets[-1] < cfg.max_num_seqs:
        raise ConfigError(
            f"batch_size_buckets end at {decode_buckets[-1]}; max_num_seqs is {cfg.max_num_seqs}",
            hint=f"add {cfg.max_num_seqs} to batch_size_buckets",
        )
    shortest = min(_SHORTEST_CHUNK, cfg.max_num_batched_tokens)
    lengths = _no_longer_than(cfg.max_length, _grown(shortest, cfg.max_num_batched_tokens, 2))
    most = [max(1, cfg.max_num_batched_tokens // length) for length in lengths]
    fits = [max((size for size in decode_buckets if size <= rows), default=1) for rows in most]
    prefill_buckets = tuple(tuple(sorted({1, rows})) for rows in fits)
    alone = max(length for length in lengths if length <= _MAX_SCORED)
    is_host = hardware is not None and hardware.family == "cpu"
    tokens_of_call = TOKENS_OF_CALL_ON_HOST if is_host else TOKENS_OF_CALL
    return BatchBuckets(
        decode_buckets, lengths, prefill_buckets, alone, tokens_of_call=tokens_of_call
    )


def _fixed_shapes(cfg: EngineConfig) -> BatchBuckets:
    page_size = cfg.page_size or 1
    longest = -(-(cfg.max_length or cfg.max_num_batched_tokens) // page_size) * page_size
    length = min(longest, cfg.max_num_batched_tokens // page_size * page_size)
    if length < 1 or cfg.batch_size_buckets not in (None, (cfg.max_num_seqs,)):
        raise ConfigError(
            f"fixed_shapes samples for {cfg.max_num_seqs} rows and reads full pages of {page_size} "
            f"tokens; max_num_batched_tokens is {cfg.max_num_batched_tokens}, and "
            f"batch_size_buckets {cfg.batch_size_buckets}",
            hint=f"leave batch_size_buckets out; set max_num_batched_tokens to {page_size} or more",
        )
    return BatchBuckets((cfg.max_num_seqs,), (length,), ((1,),), length, length)


def _no_longer_than(length: int | None, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return sizes up to the first that holds so many."""
    shorter = [size for size in sizes if length is not None and size >= length]
    return sizes if not shorter else sizes[: sizes.index(shorter[0]) + 1]


def _grown(first: int, last: int, factor: int) -> tuple[int, ...]:
    """Return `first`, multiplied as often as it is less than `last`, and `last`."""
    sizes = []
    while first < last:
        sizes.append(first)
        first *= factor
    return (*sizes, last)
