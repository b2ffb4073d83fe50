"""Our flash attention, really compiled for H100s: code of sm_90a."""

from axcore.testing import AttentionSample, CompileSuite, attention_case
from axcore.testing.contracts import attention_backward_case


def attention(kernel, name, tokens=1024, width=128, *, with_lse=False, **fields):
    sizes = {"batch": 8, "queries": tokens, "keys": tokens, "heads": 4, "key_heads": 2}
    widths = {"width": width, "value_width": width}
    sample = AttentionSample(name=name, **{**sizes, **widths, "spec": {"right": 0}, **fields})
    case = attention_case if kernel.op == "attention" else attention_backward_case
    return case(sample, with_lse=with_lse)


class TestCompile(CompileSuite):
    plugin = "axl-gpu"
    keys = ("attention/gpu_flash_attention", "attention_backward/gpu_flash_attention")
    targets = ("gpu-h100-8",)
    calls = {"gpu_flash_attention": ('custom_call_target="mosaic_gpu', 1)}

    def cases(self, kernel):
        return (
            attention(kernel, "causal"),
            attention(kernel, "documents", parts=("segments",), tokens=387, width=80),
            attention(
                kernel,
                "capped",
                width=64,
                with_lse=True,
                parts=("sinks", "ranges"),
                spec={"left": 300, "right": 0, "soft_cap": 50.0},
            ),
        )
