"""Flash attention of our own on TPU: interpreted against the reference, and compiled."""

import jax
from axl_tpu.kernels.attention import flash_attention, flash_attention_backward
from axl_tpu.kernels.attention_tiles import BACKWARD_TILES, TILES, BackwardTiles, ForwardTiles

from axcore.ops import ForwardOnly
from axcore.testing import AttentionSample, KernelSuite, attention_case
from axcore.testing.contracts import attention_backward_case

KEYS = ("attention/tpu_flash_attention", "attention_backward/tpu_flash_attention")
SMALL = ForwardTiles(128, 256)
SMALL_BACKWARD = BackwardTiles(256, 128, 128, 256)
INTERPRET = jax.default_backend() != "tpu"


def small_forward(inputs, spec, *, interpret=INTERPRET):
    with TILES.forced(SMALL):
        return flash_attention(inputs, spec, interpret=interpret)


def small_backward(inputs, spec, *, interpret=INTERPRET, **rows):
    with BACKWARD_TILES.forced(SMALL_BACKWARD):
        return flash_attention_backward(inputs, spec, interpret=interpret, **rows)


class Interpreted(KernelSuite):
    plugin = "axl-tpu"
    keys = KEYS
    dtypes = ("float32",)

    def implementation(self, kernel):
        return ForwardOnly(small_forward) if kernel.op == "attention" else small_backward


def cases_of(kernel, *samples):
    case = attention_case if kernel.op == "attention" else attention_backward_case
    return tuple(case(sample, with_lse=True) for sample in samples)


EVERYTHING = AttentionSample(
    name="everything_but_bias",
    queries=200,
    keys=330,
    width=24,
    parts=("segments", "ranges", "sinks", "offset", "dropout"),
    spec={"left": 150, "right": 2, "soft_cap": 3.0, "dropout_rate": 0.2, "query_offset": 4},
)


class TestKernels(Interpreted):
    case_names = ("everything_but_bias_lse",)

    def extra_cases(self, kernel):
        return cases_of(kernel, EVERYTHING)
