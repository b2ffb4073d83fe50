"""The kernels of axl-gpu, compiled by XLA for H100s: real code of sm_90a, real cuDNN graphs."""

from axcore.testing import (
    AttentionSample,
    CompileSuite,
    GroupedMatmulSample,
    attention_case,
    grouped_matmul_case,
)


def attention(name, tokens=1024, width=128, **fields):
    sizes = {"batch": 8, "queries": tokens, "keys": tokens, "heads": 4, "key_heads": 2}
    widths = {"width": width, "value_width": width}
    sample = {**sizes, **widths, "spec": {"right": 0}, **fields}
    return attention_case(AttentionSample(name=name, **sample))


def grouped(name, group_sizes, **fields):
    return grouped_matmul_case(GroupedMatmulSample(name=name, group_sizes=group_sizes, **fields))


class TestCompile(CompileSuite):
    plugin = "axl-gpu"
    targets = ("gpu-h100-8",)
    calls = {
        "cudnn_attention": ('custom_call_target="__cudnn$fmha', 2),
        "mosaic_grouped_matmul": ('custom_call_target="mosaic_gpu', 2),
    }

    def cases(self, kernel):
        if kernel.op == "grouped_matmul":
            return (
                grouped("experts", (512,) * 8, num_rows=4096, width=1024, out_width=2048),
                grouped("odd", (100, 0, 80), num_rows=200, width=64, out_width=192),
            )
        return (
            attention("documents", parts=("segments",)),
            attention("full", spec={}),
            attention("window", spec={"left": 300, "right": 0}),
            attention("width_64", width=64),
            attention("width_80", width=80),
            attention("odd", tokens=387),
        )
