"""Over how many devices a model is split that serves: by one rule, in `serve` and in `aot`."""

from axcore.config import evolve
from axcore.inference import EngineConfig, serving_mesh
from axcore.inference.kv_cache import weight_bytes
from axcore.models import transformer
from axcore.module import DTypes
from axcore.plugins import Hardware

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
