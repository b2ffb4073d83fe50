"""The values of a schedule: its config, sequences, the batches of a step. Without arrays of jax."""

import attrs
import numpy as np

from axcore.layers import FIRST_SOFT_TOKEN

# Priority is an advance in the queue, not a right: after so many
# later requests nobody is passed over any more, so none starves.
PATIENCE = 256
"""How many later requests a request of one higher `priority` number lets pass."""


@attrs.frozen(kw_only=True)
class SchedulerConfig:
    """The limits of a schedule.

    Args:
        num_slots: Rows that are served at once.
        max_length: Tokens of the longest text.
        page_size: Tokens of a page.
        num_pages: Pages there are.
        num_decode_steps: Tokens of a row that a call samples while nothing is read.
        chunk_lengths: Numbers of tokens of a row that are read at once, the smallest first.
        prefill_buckets: Numbers of rows that are read at once in each of those lengths.
        tokens_of_call: Tokens that take as long as a call does whatever it reads, for its weights.
        alone_length: That of them in which a text is read that is read alone.
        enable_prefix_caching: Whether texts that begin alike hold the same pages.
        chunk_alignment: Tokens; a text is read from multiples of this on, and shared in them.
        fixed_calls: Whether a call always samples `num_decode_steps` tokens, and no row is read
            again for one that is to be served sooner.
        whole_input: Soft tokens of an input, which one call reads; 0 where a call may end within
            one. The longest of `chunk_lengths` holds them.
    """

    num_slots: int
    max_length: int
    page_size: int
    num_pages: int
    num_decode_steps: int
    chunk_lengths: tuple[int, ...]
    prefill_buckets: tuple[tuple[int, ...], ...]
    alone_length: int
    tokens_of_call: int = 0
    enable_prefix_caching: bool = True
    chunk_alignment: int = 1
    fixed_calls: bool = False
    whole_input: int = 0

    def piece_length(self, missing: int) -> int:
        """Return the length of the next chunk of a text with so many tokens to read.

        That is the shortest that holds all of them, unless two pieces or more take less time.
        """
        longest = self.chunk_lengths[-1]
        if missing > longest:
            return longest
        if self.whole_input:  # for which a part of the text may be too short
            return next(length for length in self.chunk_lengths if length >= missing)
        return self._piece(missing)[0]

    def in_input(self, text: np.ndarray, place: int) -> int:
        """Return how many tokens before a place are of the input that it is within.

        None are where a call may end within an input.

        Args:
            text: Of a row.
            place: The first token that a call would not read.
        """
        if not self.whole_input or text[place] < FIRST_SOFT_TOKEN:
            return 0
        return int(text[place] - FIRST_SOFT_TOKEN) % self.whole_input

    def num_read(self, length: int, missing: np.ndarray) -> int:
        """Return how many of some texts are read at once, so that the most is read in a time.

        Args:
            length: In pieces of so many tokens.
            missing: Tokens that each has to read, the first in order first.
        """
        # Fewer rows, if those behind add less text than time: a
        # row that has one token left takes as long as a full one.
        read = np.minimum(missing, length).cumsum()
        numbers = {
            min(size, len(missing)): size * length + self.tokens_of_call
            # Largest first: where two numbers of rows give the same, `max` takes the first.
            for size in reversed(self.prefill_buckets[self.chunk_lengths.index(length)])
        }
        return max(numbers, key=lambda number: read[number - 1] / numbers[number])

    def _piece(self, missing: int) -> tuple[int, int]:
        """Return the next piece of a text, and the time that all of them take, in tokens."""
        whole = next(length for length in self.chunk_lengths if length >= missing)
        time = whole + self.tokens_of_call
        part = max((length for length in self.chunk_lengths if length < missing), default=None)
        # In parts, since one token more than a length would
        # else be padded to the next one, twice as long.
        if part is None:
            return whole, time
        in_parts = part + self.tokens_of_call + self._piece(missing - part)[1]
        return min((whole, time), (part, in_parts), key=lambda piece: piece[1])


@attrs.define(eq=False, kw_only=True)
class SequenceState:
    """A text that is continued, from its request to its last token.

    Args:
        number: Of its request, in the order of arrival.
        priority: Lower comes sooner.
        text: Tokens known when it last began to be read: the prompt, and what was sampled.
        num_prompt: Tokens of the prompt.
        limit: Tokens of prompt and answer at most.
        salt: Texts with another one share no pages with it.
        one_by_one: Whether each token has to be known before the next one is sampled.
        reads_alone: Whether all its text is read, with no other in the call.
        slot: Where it runs, None while it waits.
        pages: Those it holds.
        digests: Of its text up to the end of each full page.
        prompt_digest: Of all its text, while it may share its prefill; None otherwise.
        num_shared: Tokens of the prompt that others had computed.
        num_preemptions: How often it lost its pages.
        is_over: Whether it is finished or cancelled.
    """

    number: int
    priority: int
    text: np.ndarray
    num_prompt: int
    limit: int
    salt: bytes = b""
    one_by_one: bool = False
    reads_alone: bool = False
    slot: int | None = None
    pages: list[int] = attrs.field(factory=list)
    digests: list[bytes] = attrs.field(factory=list)
    prompt_digest: bytes | None = None
    num_shared: int = 0
    num_preemptions: int = 0
    is_over: bool = False

    @property
    def order(self) -> int:
        """The place in the order of requests; the smallest comes first."""
        # One number that never changes: a request that was preempted comes back where it was.
        return self.number + self.priority * PATIENCE

    @property
    def has_begun(self) -> bool:
        """Whether a step has run that read a part of it."""
        return self.slot is not None or self.num_preemptions > 0


@attrs.frozen(eq=False)
class ScheduledBatch:
    """Rows that run through the model together. Arrays are `[rows]`.

    Args:
        slots: Of the rows.
        generations: Of the slots; see `SequenceTable`.
        starts: Tokens of each row that came before.
        sizes: Tokens of each row that are read, or that are sampled one after the other.
        length: Tokens of a row that the program has room for.
        first_sampled: Place in its text of the first token that each row samples.
        num_sampled: Tokens that each row samples.
    """

    slots: np.ndarray
    generations: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray
    length: int
    first_sampled: np.ndarray
    num_sampled: np.ndarray


@attrs.frozen(eq=False)
class Fork:
    """A row that begins with the pages of a prompt that another row has read.

    Args:
        prompt: Digest of the prompt, whose logits it samples its first token from.
        batch: The row alone.
    """

    prompt: bytes
    batch: ScheduledBatch


@attrs.frozen(eq=False)
class SchedulerOutput:
    """What one step does, in this order.

    Args:
        copies: Pages to copy, from and to.
        prefill: Pieces of texts to read.
        prefilled: Row of `prefill` of each prompt whose logits others need, now or later, and the
            digest of the prompt.
        forks: Rows that sample from the logits of a prompt that another row has read.
        decode: Rows that decode tokens.
        started: Sequences that got a slot.
    """

    copies: tuple[tuple[int, int], ...]
    prefill: ScheduledBatch | None
    prefilled: tuple[tuple[int, bytes], ...]
    forks: tuple[Fork, ...]
    decode: ScheduledBatch | None
    started: tuple[SequenceState, ...]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to run."""
        return self.prefill is None and self.decode is None and not self.forks


class SequenceTable:
    """The rows that are served, as arrays `[num_slots]` unless they say otherwise.

    All that changes in each step is here, so that a step costs the same few numpy operations for
    any number of rows.

    Args:
        num_slots: Rows that are served at once.
        max_length: Tokens of the longest text.
        page_size: Tokens of a page.
    """

    def __init__(self, num_slots: int, max_length: int, page_size: int) -> None:
        pages_per_row = -(-max_length // page_size)

        def ints() -> np.ndarray:
            return np.zeros(num_slots, np.int32)

        self.is_running = np.zeros(num_slots, bool)
        # Wide enough never to come round: a reused number would let an old result through.
        self.generation = np.zeros(num_slots, np.int64)
        """Changes with each text that a slot gets or loses, so that late results are noticed."""
        self.order = np.zeros(num_slots, np.int64)
        """Of a smaller number comes first."""
        self.num_cached = ints()
        """Tokens whose keys and values all planned calls leave in the caches."""
        self.target = ints()
        """Tokens to read before the next one is sampled."""
        self.limit = ints()
        """Tokens that the text has at most."""
        self.num_known = ints()
        """Tokens of the text that came back from the device."""
        self.num_prompt = ints()
        self.num_pages = ints()
        self.num_digests = ints()
        self.one_by_one = np.zeros(num_slots, bool)
        """Whether each token has to be known before the next one is sampled."""
        # On the host in full, as rows are read again after a preemption.
        self.text = np.zeros((num_slots, max_length), np.int32)
        """Tokens, `[num_slots, max_length]`."""
        self.page_table = np.zeros((num_slots, pages_per_row), np.int32)
        """Pages of each row, `[num_slots, pages_per_row]`."""

    def reading(self) -> np.ndarray:
        """Return the slots whose texts are not read to their end, the first in order first."""
        slots = np.flatnonzero(self.is_running & (self.num_cached < self.target))
        # Sorting is only needed where there is something to sort; most steps read one row or none.
        return slots[np.argsort(self.order[slots])] if len(slots) > 1 else slots

    def decoding(self) -> np.ndarray:
        """Return the slots that are to sample a token after one that was sampled."""
        cached = self.num_cached
        # One less than the limit: the last token is sampled, and never read.
        samples = self.is_running & (cached >= self.target) & (cached < self.limit - 1)
        return np.flatnonzero(samples)

    def set_pages(self, slot: int, first: int, pages: list[int]) -> None:
        """Write pages of a row into its table, from the place `first` on."""
        self.page_table[slot, first : first + len(pages)] = pages
        self.num_pages[slot] = first + len(pages)
