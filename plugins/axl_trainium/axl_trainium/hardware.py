"""AWS Trainium, one host of sixteen chips each, how it is recognised, and limits of a NeuronCore.

Every figure is per chip and dense. Programs for it have no branch, and no loop of a length that is
known at run time only. Imports no jax.

Sources are the pages of the AWS Neuron documentation named next to each. They were compared with it
again in November 2026; NeuronLink-v3's 1.28 TB/s were not found again, and trn2's network, from
EC2's page of the instance, was not looked up again. No measured shares of these figures were found,
so that predictions count them whole.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from axcore.plugins import Hardware

if TYPE_CHECKING:
    from axcore.complexity import Trace

GIB = 2**30
GIGA = 1e9
TERA = 1e12


def hosts() -> tuple[Hardware, ...]:
    """Return one host of each generation."""
    return (TRN1, TRN2)


# AWS Neuron documentation, "Trainium Architecture": 190 TFLOPS in bf16, fp16, tf32 and cfp8, 47.5
# in fp32, 380 int8 TOPS, 32 GiB at 820 GiB/s; two NeuronCores, each a JAX device. Hosts are
# trn1.32xlarge ("AWS Trn1/Trn1n Architecture"). The page gives no figure for NeuronLink-v2.
TRN1 = Hardware(
    family="trainium",
    generation="trn1",
    chips=16,
    devices_per_chip=2,
    memory_bytes=32 * GIB,
    peak_flops={
        "bfloat16": 190 * TERA,
        "float16": 190 * TERA,
        "float8": 190 * TERA,
        "tensorfloat32": 190 * TERA,
        "float32": 47.5 * TERA,
        "int8": 380 * TERA,
    },
    memory_bandwidth=820.0 * GIB,
    can_branch=False,
    network_bandwidth=6.25 * GIGA,  # 800 Gbps of EFA for sixteen chips
)

# AWS Neuron documentation, "Trainium2 Architecture": 667 TFLOPS in bf16, fp16 and tf32, 1299 in
# fp8, 181 in fp32, 96 GiB at 2.9 TB/s. Eight NeuronCores, which the default logical
# configuration (LNC=2) shows as four JAX devices. Hosts are trn2.48xlarge. NeuronLink-v3 carries
# 1.28 TB/s per chip, both ways together.
TRN2 = Hardware(
    family="trainium",
    generation="trn2",
    chips=16,
    devices_per_chip=4,
    memory_bytes=96 * GIB,
    peak_flops={
        "bfloat16": 667 * TERA,
        "float16": 667 * TERA,
        "float8": 1299 * TERA,
        "tensorfloat32": 667 * TERA,
        "float32": 181 * TERA,
    },
    memory_bandwidth=2900 * GIGA,
    interconnect_bandwidth=640 * GIGA,
    can_branch=False,
    network_bandwidth=25 * GIGA,  # 3.2 Tbps of EFA for sixteen chips
)


def transformer_training(hardware: Hardware) -> Mapping[str, str]:
    """Return the flags that say what is compiled: a large language model that is trained.

    Source: "Neuron Compiler CLI Reference Guide" in AWS's documentation. Not yet tried on a device.
    """
    return {"--model-type": "transformer", "--distribution-strategy": "llm-training"}


# What kernels ask of a NeuronCore: "Trainium2 Architecture Guide for NKI".
PARTITIONS = 128
SBUF_PARTITION_BYTES = 192 * 1024

DTYPES = ("bfloat16", "float32")


def unsupported_dtype_reason(dtype: str) -> str | None:
    """Return None where kernels take the dtype, else the reason why not."""
    return None if dtype in DTYPES else f"takes {' and '.join(DTYPES)}, not {dtype}"


_DRIVER = Path("/dev/neuron0")

_PREFIXES = {"NC_v2": "trn1", "NC_v3": "trn2"}


def detect(platform: str, device_kind: str) -> str | None:
    """Return the generation of a Neuron device, or None for one that is not described.

    Kinds are names of the core's version, with a letter after it where cores are joined. Not yet
    tried on a device.
    """
    if platform != "neuron":
        return None
    return next(
        (name for prefix, name in _PREFIXES.items() if device_kind.startswith(prefix)), None
    )


def present(environment: Mapping[str, str], driver: Path = _DRIVER) -> bool:
    """Whether the driver shows a chip here, and JAX is not kept from using it."""
    wanted = environment.get("JAX_PLATFORMS", "")
    return (not wanted or "neuron" in wanted.split(",")) and driver.exists()


def runs_on_trainium(trace: "Trace") -> str | None:
    """Return None where every kernel was chosen for a Trainium chip, else why not."""
    if not trace.kernels:
        return "no kernel was chosen"
    family = trace.hardware.family
    return None if family == "trainium" else f"it was traced for {family}"
