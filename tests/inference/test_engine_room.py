"""How many pages an engine has."""

import pytest

from axcore.errors import ConfigError
from axcore.inference import EngineConfig
from axcore.inference.kv_cache import check_pages_fit, pages_within, serving_room

ROOM = serving_room(EngineConfig(max_rows=4, max_length=100, page_size=16))


def test_there_are_pages_for_all_rows_of_the_longest_texts():
    assert (ROOM.pages.num_pages, ROOM.pages.page_size) == (28, 16)
    assert serving_room(EngineConfig(max_rows=4, max_length=100, page_size=None)).pages is None


def test_there_are_fewer_pages_where_memory_holds_fewer():
    assert pages_within(ROOM, 2800, 10_000) == ROOM.pages
    assert pages_within(ROOM, 2800, 999).num_pages == 9
    with pytest.raises(ConfigError, match="memory holds 6 pages of 16 tokens, and a text may have"):
        pages_within(ROOM, 2800, 699)


def test_pages_of_the_config_that_memory_cannot_hold_are_refused_with_a_number_that_fits():
    check_pages_fit(ROOM.pages, 2800, 2800)
    with pytest.raises(ConfigError, match=r"num_pages is 28; caches .* take 4 GiB") as raised:
        check_pages_fit(ROOM.pages, 4 << 30, 2 << 30)
    assert "there are 2 GiB of memory" in raised.value.what
    assert raised.value.hint == "leave num_pages out, or set at most 12"
