"""`ServingRoom`: what a config gets when the model that it describes is to serve.

A config with a method `for_serving(room)` takes another's place there: what it returns.
"""

import attrs


@attrs.frozen(kw_only=True)
class PageRoom:
    """Pages that rows share, each taking as many as its tokens need.

    Args:
        num_pages: Pages of each cache.
        page_size: Tokens of a page.
    """

    num_pages: int
    page_size: int


@attrs.frozen(kw_only=True)
class ServingRoom:
    """How much a serving model has room for.

    Args:
        num_rows: Rows that are served at once.
        capacity: Tokens of a row in caches, its padding in a call among them.
        max_length: Tokens of the longest text.
        pages: Where keys and values are kept; None where each row has room of its own.
        call_tokens: Tokens of a row that one call has at most.
    """

    num_rows: int
    capacity: int
    max_length: int
    pages: PageRoom | None = None
    call_tokens: int = 512
