"""How many pages an engine has."""

import pytest

from axcore.errors import ConfigError
from axcore.inference import EngineConfig
from axcore.inference.engine_room import pages_within, serving_room

ROOM = serving_room(EngineConfig(max_rows=4, max_length=100, page_size=16))


def test_there_are_pages_for_all_rows_of_the_longest_texts():
    assert (ROOM.pages.num_pages, ROOM.pages.page_size) == (28, 16)
    assert serving_room(EngineConfig(max_rows=4, max_length=100, page_size=None)).pages is None


def test_there_are_fewer_pages_where_memory_holds_fewer():
    assert pages_within(ROOM, 2800, 10_000) == ROOM.pages
    assert pages_within(ROOM, 2800, 999).num_pages == 9
    with pytest.raises(ConfigError, match="memory holds 6 pages of 16 tokens, and a text may have"):
        pages_within(ROOM, 2800, 699)
