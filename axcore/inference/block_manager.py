"""`BlockManager`: the block table of each row, and the prefix cache. Blocks are called pages here.

A page is held by any number of texts that begin alike. A page that no text uses may still have the
beginning of one: that is the prefix cache. It is found by the digest of all tokens up to its end,
and is overwritten when no other page is free, the least recently released first.
"""

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np

from axcore.errors import AxcoreError
from axcore.inference.schedule import ScheduledBatch, SchedulerConfig, SequenceState, SequenceTable


class OutOfPages(AxcoreError):  # noqa: N818 - a state, which passes
    """Every page is held; some must be released first."""


def next_digest(before: bytes, tokens: np.ndarray) -> bytes:
    """Return the digest of a text that ends with a page of tokens.

    Args:
        before: Digest of the text before that page. Callers begin with a salt, so that texts of
            other adapters or weights, whose keys and values differ, are never shared.
        tokens: The page's tokens.
    """
    # Little-endian of a fixed width, so that digests
    # of one text are the same wherever they are made.
    page = np.asarray(tokens, "<i8").tobytes()
    # A cryptographic digest: with a weak one a client could craft a
    # prompt that collides with another's, and be answered from its
    # keys and values. 16 bytes make chance collisions irrelevant.
    return hashlib.blake2b(before + page, digest_size=16).digest()


class PagePool:
    """Pages `0 .. num_pages - 1`, each held by any number of texts.

    Args:
        num_pages: How many there are.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._holders = [0] * num_pages
        # Descending, so that `pop` hands out low numbers first.
        self._empty = list(range(num_pages - 1, -1, -1))
        # Ordered by when they were released: `take`
        # overwrites the one that nobody has used for longest.
        self._kept: OrderedDict[int, bytes] = OrderedDict()  # the prefix cache: held by nobody
        self._digests: dict[int, bytes] = {}
        self._pages: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Number of pages that nobody holds."""
        return len(self._empty) + len(self._kept)

    @property
    def num_used(self) -> int:
        """Number of pages that somebody holds."""
        return self.num_pages - self.num_free

    @property
    def holders(self) -> Sequence[int]:
        """How many texts hold each page, now and later."""
        return self._holders

    def take(self) -> int:
        """Return a page that nobody holds, to write on.

        Raises:
            OutOfPages: There is none.
        """
        # Pages without content first; the prefix cache loses one only when there is no other.
        if self._empty:
            page = self._empty.pop()
        elif self._kept:
            page, digest = self._kept.popitem(last=False)
            del self._pages[digest], self._digests[page]
        else:
            raise OutOfPages(f"all {self.num_pages} pages are held")
        self._holders[page] = 1
        return page

    def find(self, digest: bytes) -> int | None:
        """Return the page that ends the text of a digest, if there is one."""
        return self._pages.get(digest)

    def hold(self, page: int) -> None:
        """Hold a page that `find` returned."""
        if not self._holders[page]:
            del self._kept[page]
        self._holders[page] += 1

    def cache(self, page: int, digest: bytes) -> None:
        """Let `find` return a held page, which is full and not written any more."""
        # The first page of a digest stays. A second with the same
        # text is simply not found, and goes when its text does.
        if digest not in self._pages and page not in self._digests:
            self._pages[digest] = page
            self._digests[page] = digest

    def release(self, pages: Iterable[int]) -> None:
        """Release the pages of a text, in their order; the last is the first to be overwritten."""
        # The last pages go first: they are of no use without those before them, and other texts
        # are more likely to share a beginning.
        for page in reversed(tuple(pages)):
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            if page in self._digests:
                self._kept[page] = self._digests[page]
            else:
                self._empty.append(page)

    def clear_cache(self) -> None:
        """Clear the prefix cache."""
        # Pages in use stay where they are, but lose their digests, so nobody new finds them.
        self._empty.extend(self._kept)
        self._kept.clear()
        self._digests.clear()
        self._pages.clear()

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise AssertionError unless the tables of all texts hold exactly what is held."""
        held = Counter(page for table in tables for page in table)
        assert {page: n for page, n in enumerate(self._holders) if n} == dict(held), held
        free = [*self._empty, *self._kept]
        assert len(set(free)) == len(free) == self.num_pages - len(held), free
        assert set(self._kept) <= set(self._digests)
        assert {digest: page for page, digest in self._digests.items()} == self._pages


class PrefilledPrompts:
    """Prompts that were read to their end, as long as others with the same tokens wait.

    They hold their pages, the partly full last one too: whoever shares a prompt begins with all of
    them, and writes on a copy of the last.

    Args:
        pool: All pages.
        max_prompts: How many are kept at most; each has a row of logits on the device.
    """

    def __init__(self, pool: PagePool, max_prompts: int) -> None:
        self._pool, self._max_prompts = pool, max_prompts
        self._num_waiting: Counter[bytes] = Counter()
        # In the order in which they were read: the oldest goes first where pages are short.
        self._pages: OrderedDict[bytes, tuple[int, ...]] = OrderedDict()

    def __contains__(self, digest: object) -> bool:
        return digest in self._pages

    def __len__(self) -> int:
        return len(self._pages)

    def pages(self, digest: bytes) -> tuple[int, ...]:
        """Return the pages of a prompt that is here."""
        return self._pages[digest]

    @property
    def held_pages(self) -> Iterable[Sequence[int]]:
        """The pages of each prompt."""
        return self._pages.values()

    def wait(self, sequence: SequenceState, size: int) -> None:
        """Count a sequence whose full pages have digests among those that wait.

        Args:
            sequence: Whose prompt is not read.
            size: Tokens of a page.
        """
        before = sequence.digests[-1] if sequence.digests else sequence.salt
        tail = sequence.text[len(sequence.digests) * size :]
        sequence.prompt_digest = next_digest(before, tail)
        self._num_waiting[sequence.prompt_digest] += 1

    def leave(self, sequence: SequenceState) -> None:
        """Count a sequence no more: its prompt is read, or it is over."""
        digest, sequence.prompt_digest = sequence.prompt_digest, None
        if digest is None:
            return
        self._num_waiting[digest] -= 1
        if not self._num_waiting[digest]:
            del self._num_waiting[digest]
            self._drop(digest)

    def add(self, sequence: SequenceState) -> bytes | None:
        """Keep the prompt of a sequence that has read it; returns its digest if others wait."""
        digest = sequence.prompt_digest
        self.leave(sequence)
        if digest is None or digest not in self._num_waiting:
            return None
        assert digest not in self._pages, "nobody reads a prompt that is here"
        if len(self._pages) == self._max_prompts:
            self.drop_oldest()
        # All pages of the text: the one of the next token is none of them yet.
        self._pages[digest] = tuple(sequence.pages)
        for page in sequence.pages:
            self._pool.hold(page)
        return digest

    def drop_oldest(self) -> bool:
        """Release the pages of a prompt; returns whether there was one."""
        if not self._pages:
            return False
        self._drop(next(iter(self._pages)))
        return True

    def clear(self) -> None:
        """Release the pages of all prompts."""
        while self.drop_oldest():
            pass

    def _drop(self, digest: bytes) -> None:
        self._pool.release(self._pages.pop(digest, ()))


_Holders = Sequence[int] | np.ndarray
"""How many texts hold each page."""


class BlockManager:
    """Allocates pages to rows; not for several threads.

    Args:
        limits: What bounds the schedule.
        rows: The rows.

    Attributes:
        pool: All pages.
        prompts: Those that others will share.
        sequences: At each slot.
        copies: Pages that this step copies before all else, from and to.
        num_shared: Tokens of prompts that were found in the prefix cache.
    """

    def __init__(self, limits: SchedulerConfig, rows: SequenceTable) -> None:
        self.limits = limits
        self.rows = rows
        self.pool = PagePool(limits.num_pages)
        self.prompts = PrefilledPrompts(self.pool, limits.num_slots)
        self.sequences: list[SequenceState | None] = [None] * limits.num_slots
        self.copies: list[tuple[int, int]] = []
        self.num_shared = 0

    def extend_digests(self, sequence: SequenceState, text: np.ndarray) -> None:
        """Write down the digests of a sequence's full pages, as far as its text is known."""
        size = self.limits.page_size
        if not self.limits.enable_prefix_caching:
            return
        for place in range(len(sequence.digests), len(text) // size):
            # Each digest contains the one before it, so a
            # page is only found behind the same beginning.
            before = sequence.digests[-1] if sequence.digests else sequence.salt
            page = text[place * size : (place + 1) * size]
            sequence.digests.append(next_digest(before, page))

    def share_prefix(self, sequence: SequenceState) -> None:
        """Hold the pages of the prefix cache that have the next tokens of a sequence."""
        limits, rows, slot = self.limits, self.rows, sequence.slot
        assert slot is not None
        start, target = int(rows.num_cached[slot]), int(rows.target[slot])
        # Chunks may have to begin at multiples of several
        # pages; then pages are shared in such groups.
        unit = max(1, limits.chunk_alignment // limits.page_size)
        if (
            not limits.enable_prefix_caching
            # A text that is scored needs the logits of every token, which the cache does not have.
            or sequence.reads_alone
            or start % limits.page_size
            or len(sequence.pages) % unit
        ):
            return
        first = len(sequence.pages)
        while pages := self._found(
            sequence.digests[len(sequence.pages) : len(sequence.pages) + unit], unit
        ):
            if (
                # A full chunk must be left to compute, as one that
                # begins within a group is none of the compiled ones.
                limits.chunk_alignment > 1
                and (len(sequence.pages) + unit) * limits.page_size >= target
            ):
                break
            for page in pages:
                self.pool.hold(page)
            sequence.pages += pages
        if len(sequence.pages) > first:
            rows.set_pages(slot, first, sequence.pages[first:])
            # The last token is always computed: its logits are not in the cache.
            rows.num_cached[slot] = min(len(sequence.pages) * limits.page_size, target - 1)
            self._count_shared(sequence, int(rows.num_cached[slot]) - start)

    def wait_for_prompt(self, sequence: SequenceState) -> None:
        """Let a sequence share its prefill with others of the same text, if it can."""
        # A text that is scored needs the logits of every token, which nobody keeps.
        if self.limits.enable_prefix_caching and not sequence.reads_alone:
            self.extend_digests(sequence, sequence.text)
            self.prompts.wait(sequence, self.limits.page_size)

    def fork(self, sequence: SequenceState) -> bytes:
        """Give a sequence the pages of its prompt, which another has read; returns its digest."""
        digest, slot, rows = sequence.prompt_digest, sequence.slot, self.rows
        assert digest is not None
        assert slot is not None
        pages = self.prompts.pages(digest)
        for page in pages:
            self.pool.hold(page)
        # After the others are held: some may be the same.
        self.pool.release(sequence.pages)
        sequence.pages = list(pages)
        rows.set_pages(slot, 0, sequence.pages)
        self._count_shared(sequence, int(rows.target[slot] - rows.num_cached[slot]))
        rows.num_cached[slot] = rows.target[slot]
        self.prompts.leave(sequence)
        return digest

    def allocate(self, slot: int, count: int) -> None:
        """Allocate so many more pages to a row."""
        sequence = self.sequences[slot]
        assert sequence is not None
        pages = [self.pool.take() for _ in range(count)]
        self.rows.set_pages(slot, len(sequence.pages), pages)
        sequence.pages += pages

    # A page in the prefix cache that nobody holds counts as needed: to hold it makes it not free.
    def num_pages_needed(self, sequence: SequenceState, holders: _Holders) -> int:
        """Return how many free pages a sequence needs to be read to its end.

        Args:
            sequence: It has no page yet.
            holders: How many texts hold each page then.
        """
        limits = self.limits
        if sequence.prompt_digest in self.prompts:
            # That of the next token: a new one, or a copy of the last of the prompt.
            return 1
        # One more than the text: room for the first sampled token.
        missing = -(-(len(sequence.text) + 1) // limits.page_size)
        shares = limits.enable_prefix_caching and not sequence.reads_alone
        for digest in sequence.digests if shares else ():
            page = self.pool.find(digest)
            if page is None:
                break
            # Held pages cost nothing; held by nobody, one leaves the free ones.
            missing -= bool(holders[page])
        return missing

    def holders_without(self, slots: np.ndarray) -> np.ndarray:
        """Return how many texts would hold each page if those at some slots were gone."""
        holders = np.array(self.pool.holders)
        for slot in slots.tolist():
            sequence = self.sequences[slot]
            assert sequence is not None
            holders[sequence.pages] -= 1
        return holders

    def num_copies(self, slots: np.ndarray, holders: _Holders | None = None) -> int:
        """Return how many pages some rows need to copy before they are written on.

        Args:
            slots: Of the rows.
            holders: How many texts hold each page then; None takes those that do now.
        """
        return len(self._shared(slots, self.pool.holders if holders is None else holders))

    def copy_on_write(self, slots: np.ndarray) -> None:
        """Give rows copies of the pages that they will write on and that others hold too."""
        for slot in self._shared(slots, self.pool.holders):
            sequence = self.sequences[slot]
            assert sequence is not None
            # The page of the next token alone: all pages
            # before it are full, and never written again.
            place = int(self.rows.num_cached[slot]) // self.limits.page_size
            page, own = sequence.pages[place], self.pool.take()
            self.copies.append((page, own))
            # This text uses the copy from now on. The page keeps its digest for the other texts.
            self.pool.release([page])
            sequence.pages[place] = self.rows.page_table[slot, place] = own

    def cache_prefilled(self, read: ScheduledBatch) -> None:
        """Add the pages that a call fills to the prefix cache.

        They are found before the call has run, as calls run in the order in which they are planned.
        """
        if not self.limits.enable_prefix_caching:
            return
        size = self.limits.page_size
        # Only full pages: a page that is still written has another content at each step.
        for slot, start, count in zip(read.slots, read.starts, read.sizes, strict=True):
            sequence = self.sequences[slot]
            assert sequence is not None
            # By another program: who finds it would get bits that depend on what else ran.
            if self.limits.fixed_calls and sequence.reads_alone:
                continue
            self._cache(sequence, range(int(start) // size, int(start + count) // size))

    def cache_decoded(self, slots: np.ndarray) -> None:
        """Add pages that sampled tokens filled to the prefix cache, once they are known."""
        # Decoding computes other bits than reading the same text would.
        if self.limits.fixed_calls:
            return
        rows, size = self.rows, self.limits.page_size
        # Known on the host and computed on the device: the
        # token sampled last has no keys and values yet.
        full = np.minimum(rows.num_known[slots], rows.num_cached[slots]) // size
        for slot in slots[full > rows.num_digests[slots]].tolist():
            sequence = self.sequences[slot]
            assert sequence is not None
            first = len(sequence.digests)
            end = min(int(rows.num_known[slot]), int(rows.num_cached[slot]))
            self.extend_digests(sequence, rows.text[slot, :end])
            rows.num_digests[slot] = len(sequence.digests)
            self._cache(sequence, range(first, len(sequence.digests)))

    def digests_within(self, sequence: SequenceState, size: int) -> list[bytes]:
        """Return the digests of the pages that the next tokens of a sequence fill."""
        if not self.limits.enable_prefix_caching:
            return []
        start = int(self.rows.num_cached[sequence.slot])
        page_size = self.limits.page_size
        return sequence.digests[start // page_size : (start + size) // page_size]

    def next_digest_of(self, sequence: SequenceState) -> bytes | None:
        """Return the digest of the page that a sequence reads next; None where it is not full."""
        place = int(self.rows.num_cached[sequence.slot]) // self.limits.page_size
        return sequence.digests[place] if place < len(sequence.digests) else None

    def _found(self, digests: list[bytes], count: int) -> list[int]:
        """Return the pages of so many digests, or none."""
        pages = [self.pool.find(digest) for digest in digests]
        found = [page for page in pages if page is not None]
        return found if len(found) == count else []

    def _shared(self, slots: np.ndarray, holders: _Holders) -> list[int]:
        """Return the slots whose next token needs a copy of a page that others hold too.

        That is so of a text whose every page was found, whose last token is computed again for what
        follows it, and of the first token after a prompt that is shared to its last, partly full
        page.
        """
        if not self.limits.enable_prefix_caching:
            return []
        rows, size = self.rows, self.limits.page_size
        # See the docstring: these are the only rows that can write on a shared page.
        missing = rows.target[slots] - rows.num_cached[slots]
        found = slots[(missing == 0) | (missing == 1)]
        place = rows.num_cached[found] // size
        is_held = place < rows.num_pages[found]
        found, place = found[is_held], place[is_held]
        pages = rows.page_table[found, place].tolist()
        left = {page: int(holders[page]) for page in pages}
        shared = []
        for slot, page in zip(found.tolist(), pages, strict=True):
            # Whoever comes last has the page for itself: it needs no copy, and with
            # fixed shapes there are not more pages than rows need without sharing.
            if left[page] > 1:
                left[page] -= 1
                shared.append(slot)
        return shared

    def _count_shared(self, sequence: SequenceState, count: int) -> None:
        # What is found after a preemption is its own earlier
        # work, which would make the hit rate look better.
        if not sequence.num_preemptions:
            sequence.num_shared += count
            self.num_shared += count

    def _cache(self, sequence: SequenceState, places: range) -> None:
        for place in places:
            self.pool.cache(sequence.pages[place], sequence.digests[place])
