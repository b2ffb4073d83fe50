"""How many pages an engine has."""

import pytest

from axcore.errors import ConfigError
from axcore.inference import EngineConfig
from axcore.inference.kv_cache import check_pages_fit, fit_pages, kv_cache_config

CACHE_CONFIG = kv_cache_config(EngineConfig(max_num_seqs=4, max_length=100, page_size=16))


def test_there_are_pages_for_all_rows_of_the_longest_texts():
    assert (CACHE_CONFIG.pages.num_pages, CACHE_CONFIG.pages.page_size) == (28, 16)
    assert (
        kv_cache_config(EngineConfig(max_num_seqs=4, max_length=100, page_size=None)).pages is None
    )


def test_there_are_fewer_pages_where_memory_holds_fewer():
    assert fit_pages(CACHE_CONFIG, 2800, 10_000) == CACHE_CONFIG.pages
    assert fit_pages(CACHE_CONFIG, 2800, 999).num_pages == 9
    with pytest.raises(ConfigError, match="memory holds 6 pages of 16 tokens, and a text may have"):
        fit_pages(CACHE_CONFIG, 2800, 699)


def test_pages_of_the_config_that_memory_cannot_hold_are_refused_with_a_number_that_fits():
    check_pages_fit(CACHE_CONFIG.pages, 2800, 2800)
    with pytest.raises(ConfigError, match=r"num_pages is 28; caches .* take 4 GiB") as raised:
        check_pages_fit(CACHE_CONFIG.pages, 4 << 30, 2 << 30)
    assert "there are 2 GiB of memory" in raised.value.what
    assert raised.value.hint == "leave num_pages out, or set at most 12"
