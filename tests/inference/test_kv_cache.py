"""How many pages an engine has."""

import pytest

from axcore.config import evolve
from axcore.errors import ConfigError
from axcore.inference import EngineConfig, serving_mesh
from axcore.inference.kv_cache import check_pages_fit, fit_pages, kv_cache_config, weight_bytes
from axcore.models import transformer
from axcore.module import DTypes
from axcore.plugins import Hardware

CACHE_CONFIG = kv_cache_config(EngineConfig(max_num_seqs=4, max_length=100, page_size=16))


def test_there_are_pages_for_all_rows_of_the_longest_texts():
    assert (CACHE_CONFIG.pages.num_pages, CACHE_CONFIG.pages.page_size) == (28, 16)
    assert (
        kv_cache_config(EngineConfig(max_num_seqs=4, max_length=100, page_size=None)).pages is None
    )


def test_there_are_fewer_pages_where_memory_holds_fewer():
    assert fit_pages(CACHE_CONFIG, 2800, 10_000) == CACHE_CONFIG.pages
    assert fit_pages(CACHE_CONFIG, 2800, 999).num_pages == 9
    with pytest.raises(
        ConfigError, match="there is memory for 6 pages of 16 tokens, and a text may have"
    ):
        fit_pages(CACHE_CONFIG, 2800, 699)


def test_pages_of_the_config_that_memory_cannot_hold_are_refused_with_a_number_that_fits():
    check_pages_fit(CACHE_CONFIG.pages, 2800, 2800)
    with pytest.raises(ConfigError, match=r"num_pages is 28; caches .* take 4 GiB") as raised:
        check_pages_fit(CACHE_CONFIG.pages, 4 << 30, 2 << 30)
    assert "there are 2 GiB of memory" in raised.value.what
    assert raised.value.hint == "leave num_pages out, or set at most 12"


CFG = transformer(vocab_size=264, dim=64, num_layers=2, num_heads=4, hidden_dim=96)
MODEL = evolve(CFG, dtypes=DTypes(param="float32", compute="bfloat16")).build()
SIZES = EngineConfig(max_num_seqs=1, max_length=32, compute="bfloat16")


def split(memory_bytes, num_devices=8, cfg=SIZES, **figures):
    hardware = Hardware(family="acme", chips=num_devices, memory_bytes=memory_bytes, **figures)
    return serving_mesh(MODEL, cfg, hardware, num_devices)["model"]


def test_a_model_is_split_over_as_few_devices_as_hold_it_in_half_of_their_memory():
    nbytes = weight_bytes(MODEL, SIZES)
    assert [split(share * nbytes) for share in (4, 2, 1)] == [1, 1, 2]
    assert split(2 * nbytes, devices_per_chip=2) == 2
    assert split(int(1.5 * nbytes)) == 2
    assert split(int(1.5 * nbytes), cfg=evolve(SIZES, weights="int8")) == 1


def test_it_is_split_only_where_it_divides():
    nbytes = weight_bytes(MODEL, SIZES)
    assert split(nbytes // 4, num_devices=6) == 2  # 3 and 6 do not divide its widths
    assert split(1, num_devices=16) == 8  # what does not fit even so is refused with its bytes


def test_a_host_whose_memory_is_not_known_holds_it_on_one_device():
    assert split(None) == 1
