"""A train step's memory with each attention kernel, compiled for eight H100s, within its budget."""

import attention_memory
import pytest

TARGET = "gpu-h100-8"
KERNELS = ("cudnn_attention", "cudnn_packed_attention", "gpu_flash_attention", "portable")

pytestmark = pytest.mark.compile(TARGET)


@pytest.mark.parametrize("kernel", KERNELS)
def test_peak_memory_is_within_its_budget(kernel, compile_devices, tmp_path):
    peak = attention_memory.peak_mib(kernel, compile_devices, tmp_path)
    attention_memory.check(TARGET, kernel, peak)
