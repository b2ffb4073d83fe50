"""`ServingRoom`: what a config gets when the model that it describes is to serve.

A config with a method `for_serving(room)` takes another's place there: what it returns.
"""

import attrs


@attrs.frozen(kw_only=True)
class ServingRoom:
    """How much a serving model has room for.

    Args:
        num_rows: Rows that are served at once.
        capacity: Tokens of a row in caches, its padding in a call among them.
        max_length: Tokens of the longest text.
    """

    num_rows: int
    capacity: int
    max_length: int
