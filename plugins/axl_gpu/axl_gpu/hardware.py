"""NVIDIA data-centre GPUs, one host of eight each. Every figure is per GPU and dense (no sparsity).

A figure's source is the vendor's datasheet of that product, named next to it; where a datasheet
gives throughput with sparsity, it is halved. Memory is the nominal capacity; the driver keeps up
to 2 % of it. NVLink figures of datasheets count both directions; here they are halved.

B200's memory, bandwidth and dense throughputs, and the memory, bandwidth and bfloat16 of H100 and
H200, were compared with what others publish in November 2026; the datasheets themselves, and so
the other figures, were not read again.

Shares that programs reach are others' measurements, of products and transfers by themselves; none
was fitted to a step.
- Products: Bekman, "Machine Learning Engineering", table of maximum achievable matmul FLOPS, which
  has the best shape of each GPU.
- NVLink: what NCCL's developers give for transfers over all GPUs of a host, 230 of 300 GB/s on A100
  (NVIDIA/nccl-tests issue 149) and 370 of 450 on H100 (issue 212); B200 by 695 of 900, measured on
  B300 (NVIDIA/nccl issue 2140).
- Network: 46 to 48 of 50 GB/s a GPU (nccl-tests issue 290), one NIC a GPU as in DGX systems.
- Memory: Calculon's share for large arrays (Isaev et al. 2023, SC 23).
- Attention: cuDNN at 600 TFLOP/s forward, 516 backward, heads of 128 (Shah et al. 2024,
  arXiv:2407.08608).
"""

from axcore.plugins import Hardware

GIB = 2**30
GIGA = 1e9
TERA = 1e12

CUDNN = "cudnn_attention"
CUDNN_HOPPER = "cudnn_attention_from_hopper"
"""What cuDNN's attention learnt with Hopper: wide heads, values of another width, packed rows."""

WGMMA = "wgmma"
"""Products of a warp group from shared memory, which kernels for Hopper are written in."""

FLOAT8 = "float8"
INT8 = "int8"
"""Formats that tensor cores multiply; XLA hands such products to cuBLAS."""


def hosts() -> tuple[Hardware, ...]:
    """Return one HGX host of each generation."""
    return (A100_40GB, A100, H100, H200, B200)


# NVIDIA A100 Tensor Core GPU datasheet, A100 80GB SXM column.
A100 = Hardware(
    family="gpu",
    generation="a100",
    chips=8,
    memory_bytes=80 * GIB,
    peak_flops={
        "bfloat16": 312 * TERA,
        "float16": 312 * TERA,
        "tensorfloat32": 156 * TERA,
        "float32": 19.5 * TERA,
        "int8": 624 * TERA,
    },
    memory_bandwidth=2.039 * TERA,
    interconnect_bandwidth=0.3 * TERA,  # third-generation NVLink, 600 GB/s both ways
    network_bandwidth=25 * GIGA,  # HDR InfiniBand, 200 Gb/s
    achievable_fraction={
        "bfloat16": 0.869,
        "float16": 0.869,
        "memory": 0.9,
        "interconnect": 0.77,
        "network": 0.94,
    },
    features={CUDNN, INT8},
)

# NVIDIA A100 Tensor Core GPU datasheet, A100 40GB SXM column.
A100_40GB = Hardware(
    family="gpu",
    generation="a100-40gb",
    chips=8,
    memory_bytes=40 * GIB,
    peak_flops=A100.peak_flops,
    memory_bandwidth=1.555 * TERA,
    interconnect_bandwidth=0.3 * TERA,
    network_bandwidth=A100.network_bandwidth,
    achievable_fraction=A100.achievable_fraction,
    features={CUDNN, INT8},
)

# NVIDIA H100 Tensor Core GPU architecture whitepaper, H100 SXM5 column (dense).
H100 = Hardware(
    family="gpu",
    generation="h100",
    chips=8,
    memory_bytes=80 * GIB,
    peak_flops={
        "bfloat16": 989.4 * TERA,
        "float16": 989.4 * TERA,
        "float8": 1978.9 * TERA,
        "tensorfloat32": 494.7 * TERA,
        "float32": 66.9 * TERA,
        "int8": 1978.9 * TERA,
    },
    memory_bandwidth=3.35 * TERA,
    interconnect_bandwidth=0.45 * TERA,  # fourth-generation NVLink, 900 GB/s both ways
    network_bandwidth=50 * GIGA,  # NDR InfiniBand, 400 Gb/s
    achievable_fraction={
        "bfloat16": 0.803,
        "float16": 0.803,
        "float8": 0.709,
        "attention": 0.61,
        "attention_backward": 0.52,
        "memory": 0.9,
        "interconnect": 0.82,
        "network": 0.94,
    },
    features={CUDNN, CUDNN_HOPPER, WGMMA, INT8, FLOAT8},
)

# NVIDIA H200 Tensor Core GPU datasheet, H200 SXM column: the compute of an H100.
H200 = Hardware(
    family="gpu",
    generation="h200",
    chips=8,
    memory_bytes=141 * GIB,
    peak_flops=H100.peak_flops,
    memory_bandwidth=4.8 * TERA,
    interconnect_bandwidth=0.45 * TERA,
    network_bandwidth=H100.network_bandwidth,
    achievable_fraction={**H100.achievable_fraction, "float8": 0.734},
    features={CUDNN, CUDNN_HOPPER, WGMMA, INT8, FLOAT8},
)

# NVIDIA DGX B200 datasheet, divided by its eight GPUs: 1,440 GB, 64 TB/s, 72 PFLOPS FP8 with
# sparsity; float32 from the HGX page (600 TFLOPS of eight).
B200 = Hardware(
    family="gpu",
    generation="b200",
    chips=8,
    memory_bytes=180 * GIB,
    peak_flops={
        "bfloat16": 2250 * TERA,
        "float16": 2250 * TERA,
        "float8": 4500 * TERA,
        "tensorfloat32": 1125 * TERA,
        "float32": 75 * TERA,
        "int8": 4500 * TERA,
    },
    memory_bandwidth=8 * TERA,
    interconnect_bandwidth=0.9 * TERA,  # fifth-generation NVLink, 1.8 TB/s both ways
    network_bandwidth=50 * GIGA,  # NDR InfiniBand, 400 Gb/s
    achievable_fraction={
        "bfloat16": 0.776,
        "float16": 0.776,
        "float8": 0.763,
        "memory": 0.9,
        "interconnect": 0.77,
        "network": 0.94,
    },
    features={CUDNN, CUDNN_HOPPER, INT8, FLOAT8},
)
