"""The library kernels of axl-tpu, compiled by libtpu."""

from compile_cases import attention, grouped

from axcore.testing import CompileSuite


class TestCompile(CompileSuite):
    plugin = "axl-tpu"
    keys = ("attention/splash_attention", "grouped_matmul/megablox")
    targets = ("tpu-v5p-8",)
    calls = {
        "splash_attention": ('custom_call_target="tpu_custom_call"', 3),
        "megablox": ('custom_call_target="tpu_custom_call"', 3),
    }

    def cases(self, kernel):
        if kernel.op == "grouped_matmul":
            return (
                grouped("experts", (512,) * 8, num_rows=4096, width=1024, out_width=2048),
                grouped("odd", (100, 0, 80), num_rows=200, width=80, out_width=200),
            )
        return (
            attention("documents", parts=("segments",)),
            attention("window", spec={"left": 300, "right": 0}),
            attention("soft_cap", spec={"right": 0, "soft_cap": 30.0}),
            attention("width_64", width=64),
            attention("width_80", width=80),
            attention("width_256", width=256),
            attention("value_width", width=192, value_width=128),
            attention("small", tokens=384),
        )
