"""Published weights go to devices as they are served, one array after another from its file."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_state import numpy_state
from safetensors.numpy import load_file, save_file

from axcore.config import update_config
from axcore.errors import CheckpointError
from axcore.inference import EngineConfig, Request, Sampling, open_engine, weights
from axcore.inference.cached_model import CachedModel
from axcore.inference.weights import WeightConversion
from axcore.interop import from_hugging_face, host_arrays, to_hugging_face
from axcore.layers import KVCacheConfig
from axcore.models import llama2, mixtral
from axcore.modifiers import NAMED_WEIGHTS
from axcore.parallel import make_mesh
from axcore.runs import open_model

CACHE_CONFIG = KVCacheConfig(num_rows=2, capacity=16, max_length=13)
SIZES = EngineConfig(
    max_num_seqs=1, max_length=32, max_num_batched_tokens=17, sampler_kinds=("greedy",)
)
REQUEST = Request(prompt=(65, 66), max_tokens=6, sampling=Sampling(temperature=0), ignores_end=True)
DEEP = update_config(
    llama2("toy"), {"decoder.stack.num_layers": 8, "**.feed_forward.hidden_dim": 256}
)
WIDEST = 264 * 64 * 4
"""Bytes of the largest array of any layer of DEEP in float32, its embedding."""


def written(folder, cfg, **how):
    state = jax.tree.map(jnp.asarray, numpy_state(cfg.build().param_specs()))
    to_hugging_face(folder, cfg, state, max_length=32, **how)
    return folder


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    return written(tmp_path_factory.mktemp("deep") / "hf", DEEP)


def served(folder, weights, mesh=None, **how):
    """Returns the weights that a model of a folder is served with."""
    read = from_hugging_face(folder, **how)
    narrow = weights and NAMED_WEIGHTS[weights]
    return CachedModel(read.model, read.state, CACHE_CONFIG, mesh=mesh, quantization=narrow).weights


def over(num_devices):
    """Returns a mesh of devices that are not the one which hosts read into."""
    return make_mesh({"model": num_devices}, jax.devices()[2 : 2 + num_devices])


def bytes_on(device):
    """Returns what arrays take on a device.

    Hosts read into the first one, whose memory others may share: that is left out of its own.
    """
    parts = [part.data for one in jax.live_arrays() for part in one.addressable_shards]
    others = {part.unsafe_buffer_pointer() for part in parts if part.device != device}
    own = {part.unsafe_buffer_pointer(): part.nbytes for part in parts if part.device == device}
    is_first = device == jax.devices()[0]
    return sum(size for place, size in own.items() if not (is_first and place in others))


@pytest.fixture
def peaks(monkeypatch):
    """The most bytes on devices 0 and 2 above those before, while weights are converted."""
    gc.collect()  # engines of other tests
    devices = [jax.devices()[number] for number in (0, 2)]
    before = [bytes_on(device) for device in devices]
    found = [0, 0]

    def look():
        now = [
            bytes_on(device) - min_kind for device, min_kind in zip(devices, before, strict=True)
        ]
        found[:] = map(max, found, now)

    kept, made = weights.kept_weight, WeightConversion.arrays

    def kept_watched(specs, weight):
        arrays = jax.block_until_ready(kept(specs, weight))
        look()
        return arrays

    def arrays_watched(self, state, **options):
        for one in made(self, state):
            look()
            yield one

    monkeypatch.setattr(weights, "kept_weight", kept_watched)
    monkeypatch.setattr(WeightConversion, "arrays", arrays_watched)
    return found


@pytest.mark.skipif(
    jax.__version_info__ < (0, 10, 2),
    reason="all full-precision weights are on a device there (docs/serving-memory.md)",
)
@pytest.mark.parametrize("num_devices", [1, 2])
@pytest.mark.parametrize("weights", [None, "int8"])
@pytest.mark.quick_one_in(2)
def test_a_device_holds_what_it_serves_and_one_array_as_it_was_trained(
    deep, peaks, weights, num_devices
):
    weights = served(deep, weights, over(num_devices), on_host=True)
    kept = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(weights))
    on_host, on_device = peaks
    assert kept <= on_device <= kept + WIDEST / num_devices + 1024
    assert on_host <= WIDEST


@pytest.mark.slow
def test_an_engine_of_a_published_model_holds_no_more(deep, peaks):
    """Its answers are those of a model that was read whole."""
    cfg, answers, most = update_config(SIZES, {"weights": "int8"}), [], []
    for on_host in (True, False):
        opened = open_model(deep, on_host=on_host)
        what = opened.model, opened.state, opened.tokenizer, cfg
        with open_engine(*what, mesh=make_mesh({}, jax.devices()[:1])) as engine:
            kept = engine._programs.weights.device_bytes
            most.append(peaks[0])
            answers.append(engine.submit(REQUEST).result(60).tokens)
    assert most[0] <= kept + WIDEST + 1024 < most[1]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("num_devices", [1, 2])
@pytest.mark.parametrize("weights", [None, "int8", "int4", "float8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.quick_one_in(4)
def test_weights_are_those_of_a_model_that_was_read_whole(tmp_path, dtype, weights, num_devices):
    folder = written(tmp_path / "hf", mixtral("toy"), dtype=dtype)
    found, expected = (
        served(folder, weights, over(num_devices), on_host=on_host) for on_host in (True, False)
    )

    def check(one, other):
        assert (one.dtype, one.sharding) == (other.dtype, other.sharding)
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()

    jax.tree.map(check, found, expected)


def test_an_array_with_what_is_no_number_is_named_when_it_is_placed(tmp_path):
    folder = written(tmp_path / "hf", llama2("toy"))
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.self_attn.k_proj.weight"
    tensors[name] = np.full_like(tensors[name], np.inf)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"1 tensors contain numbers that are nan.*\n{name}"):
        served(folder, "int8", on_host=True)
    del tensors[name]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        from_hugging_face(folder, on_host=True)


@pytest.mark.slow
def test_a_host_needs_room_for_what_it_serves_not_for_what_was_trained(deep, monkeypatch):
    kept = sum(leaf.nbytes for leaf in jax.tree.leaves(served(deep, "int8")))
    monkeypatch.setattr(host_arrays, "host_bytes", lambda: kept)
    served(deep, "int8", on_host=True)
    monkeypatch.setattr(host_arrays, "host_bytes", lambda: kept - 1)
    with pytest.raises(CheckpointError, match=r"need .* of the host's memory \(.* as int8"):
        served(deep, "int8", on_host=True)
    with pytest.raises(CheckpointError, match=r"need .* of the host's memory \(.* as float32\)"):
        served(deep, "int8")
