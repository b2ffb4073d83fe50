"""Cloud TPUs, one host each. Every figure is per chip.

Sources are the pages of the Cloud TPU documentation named next to each. Link figures there count
both directions where they say "bidirectional", and are halved here. The number in a target's name
counts what Google counts: TensorCores for v4, v5p and TPU7x, chips for v5e and v6e. Clocks are the
peak over the FLOPs of a cycle at which libtpu's own estimates of large products come to the peak.

Shares of the peak that kernels reach are by the cycles that libtpu schedules for them, as
`benchmarks/tpu_kernels.py` (heads of 128, causal rows of 4096 tokens) and
`benchmarks/tpu_products.py` count them; a test compares them with what these recorded. They are of
the products that `axcore aot` counts: half of all pairs, though blocks on the diagonal are computed
whole. Of v4 and 7x nothing was counted.

All figures were compared with these pages again in November 2026, but for v4's links and v5p's
int8, of which today's pages say nothing. What joins slices of v4, v5p and 7x is not in them.
"""

from axcore.plugins import Hardware

GIB = 2**30
GIGA = 1e9
TERA = 1e12

PALLAS = "pallas"
SPLASH = "splash_attention"
MEGABLOX = "megablox"
INT8 = "int8"
FLOAT8 = "float8"
"""Formats that the matrix unit multiplies, by the figures below."""


def hosts() -> tuple[Hardware, ...]:
    """Return one host of each generation."""
    return (V4, V5E, V5P, V6E, TPU7X)


# Cloud TPU documentation, "TPU v4": 275 TFLOPs in bf16 or int8, 32 GiB HBM2 at 1200 GBps; two
# TensorCores that JAX shows as one device; six links of 50 GB/s each way (2400 Gbps).
V4 = Hardware(
    family="tpu",
    links_hosts=True,
    generation="v4",
    chips=4,
    units_per_chip=2,
    memory_bytes=32 * GIB,
    peak_flops={"bfloat16": 275 * TERA, "int8": 275 * TERA},
    memory_bandwidth=1200 * GIGA,
    interconnect_bandwidth=300 * GIGA,
    clock_hz=1.05 * GIGA,
    features={PALLAS, SPLASH, MEGABLOX, INT8},
)

# Cloud TPU documentation, "TPU v5e" and the v5e column of "TPU v6e": 197 TFLOPs, 393 TOPs int8,
# 16 GB at 819 GBps, 1600 Gbps of links; slices of several hosts have four chips in each. 6.4 Tbps
# of data center network for the 256 chips of a pod.
V5E = Hardware(
    family="tpu",
    links_hosts=True,
    generation="v5e",
    chips=4,
    memory_bytes=16 * GIB,
    peak_flops={"bfloat16": 197 * TERA, "int8": 393 * TERA},
    memory_bandwidth=819 * GIGA,
    interconnect_bandwidth=200 * GIGA,
    network_bandwidth=3.125 * GIGA,
    clock_hz=1.5 * GIGA,
    achievable_fraction={
        "attention/splash_attention": 0.551,
        "attention_backward/splash_attention": 0.731,
        "attention/tpu_flash_attention": 0.612,
        "attention_backward/tpu_flash_attention": 0.782,
        "grouped_matmul/megablox": 0.82,
        "grouped_matmul_backward/megablox": 0.907,
        "grouped_matmul/tpu_grouped_matmul": 0.849,
        "grouped_matmul_backward/tpu_grouped_matmul": 0.962,
    },
    features={PALLAS, SPLASH, MEGABLOX, INT8},
)

# Cloud TPU documentation, "TPU v5p": 459 TFLOPs, 918 TOPs int8, 95 GiB at 2765 GBps, 1200 GBps of
# links both ways; two TensorCores that JAX shows as one device.
V5P = Hardware(
    family="tpu",
    links_hosts=True,
    generation="v5p",
    chips=4,
    units_per_chip=2,
    memory_bytes=95 * GIB,
    peak_flops={"bfloat16": 459 * TERA, "int8": 918 * TERA},
    memory_bandwidth=2765 * GIGA,
    interconnect_bandwidth=600 * GIGA,
    clock_hz=1.75 * GIGA,
    achievable_fraction={
        "attention/splash_attention": 0.521,
        "attention_backward/splash_attention": 0.716,
        "attention/tpu_flash_attention": 0.581,
        "attention_backward/tpu_flash_attention": 0.754,
        "grouped_matmul/megablox": 0.817,
        "grouped_matmul_backward/megablox": 0.904,
        "grouped_matmul/tpu_grouped_matmul": 0.85,
        "grouped_matmul_backward/tpu_grouped_matmul": 0.962,
    },
    features={PALLAS, SPLASH, MEGABLOX, INT8},
)

# Cloud TPU documentation, "TPU v6e": 918 TFLOPs, 1836 TOPs int8; the v6e column of "TPU7x":
# 32 GiB at 1638 GBps, 800 GBps of links both ways; "TPU v6e" next to v5e: 25.6 Tbps of data center
# network for the 256 chips of a pod.
V6E = Hardware(
    family="tpu",
    links_hosts=True,
    generation="v6e",
    chips=4,
    memory_bytes=32 * GIB,
    peak_flops={"bfloat16": 918 * TERA, "int8": 1836 * TERA},
    memory_bandwidth=1638 * GIGA,
    interconnect_bandwidth=400 * GIGA,
    network_bandwidth=12.5 * GIGA,
    clock_hz=1.75 * GIGA,
    achievable_fraction={
        "attention/splash_attention": 0.198,
        "attention_backward/splash_attention": 0.298,
        "attention/tpu_flash_attention": 0.233,
        "attention_backward/tpu_flash_attention": 0.306,
        "grouped_matmul/megablox": 0.65,
        "grouped_matmul_backward/megablox": 0.603,
        "grouped_matmul/tpu_grouped_matmul": 0.712,
        "grouped_matmul_backward/tpu_grouped_matmul": 0.661,
    },
    features={PALLAS, SPLASH, MEGABLOX, INT8},
)

# Cloud TPU documentation, "TPU7x (Ironwood)": 2307 TFLOPs bf16, 4614 fp8, 192 GiB at 7380 GBps,
# 1200 GBps of links both ways; two TensorCores, each a JAX device of its own with half the memory.
TPU7X = Hardware(
    family="tpu",
    links_hosts=True,
    generation="7x",
    chips=4,
    units_per_chip=2,
    devices_per_chip=2,
    memory_bytes=192 * GIB,
    peak_flops={"bfloat16": 2307 * TERA, "float8": 4614 * TERA},
    memory_bandwidth=7380 * GIGA,
    interconnect_bandwidth=600 * GIGA,
    clock_hz=2.2 * GIGA,
    features={PALLAS, SPLASH, MEGABLOX, FLOAT8},
)
