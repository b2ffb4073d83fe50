"""`PagePool`: who holds which pages of the cache, and what those hold that nobody has.

A page that nobody holds may still hold the beginning of a text. It is found by the digest of all
tokens up to its end, and is overwritten when no other page is free, the one that was given back
first before the others.
"""

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np

from axcore.errors import AxcoreError


class OutOfPages(AxcoreError):  # noqa: N818 - a state, which passes
    """Every page is held; some must be given back first."""


def next_digest(before: bytes, tokens: np.ndarray) -> bytes:
    """Returns the digest of a text that ends with a page of tokens.

    Args:
        before: Digest of the text before that page; what begins a text is the caller's, so that
            texts of different adapters or weights differ.
        tokens: The page's tokens.
    """
    page = np.asarray(tokens, "<i8").tobytes()
    return hashlib.blake2b(before + page, digest_size=16).digest()


class PagePool:
    """Pages `0 .. num_pages - 1`, each held by any number of texts.

    Args:
        num_pages: How many there are.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._holders = [0] * num_pages
        self._empty = list(range(num_pages - 1, -1, -1))
        self._kept: OrderedDict[int, bytes] = OrderedDict()  # of pages that nobody holds
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
        """Returns a page that nobody holds, to write on.

        Raises:
            OutOfPages: There is none.
        """
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
        """Returns the page that ends the text of a digest, if there is one."""
        return self._pages.get(digest)

    def hold(self, page: int) -> None:
        """Holds a page that was found."""
        if not self._holders[page]:
            del self._kept[page]
        self._holders[page] += 1

    def remember(self, page: int, digest: bytes) -> None:
        """Lets a held page be found; it is full and written no more, unless with the same."""
        if digest not in self._pages and page not in self._digests:
            self._pages[digest] = page
            self._digests[page] = digest

    def release(self, pages: Iterable[int]) -> None:
        """Gives pages of a text back, in their order; the last is the first to be overwritten."""
        for page in reversed(tuple(pages)):
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            if page in self._digests:
                self._kept[page] = self._digests[page]
            else:
                self._empty.append(page)

    def forget(self) -> None:
        """Lets no page be found any more."""
        self._empty.extend(self._kept)
        self._kept.clear()
        self._digests.clear()
        self._pages.clear()

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Raises AssertionError unless the tables of all texts hold exactly what is held."""
        held = Counter(page for table in tables for page in table)
        assert {page: n for page, n in enumerate(self._holders) if n} == dict(held), held
        free = [*self._empty, *self._kept]
        assert len(set(free)) == len(free) == self.num_pages - len(held), free
        assert set(self._kept) <= set(self._digests)
        assert {digest: page for page, digest in self._digests.items()} == self._pages
