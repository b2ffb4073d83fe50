"""Our kernels of products and norms, compiled for H100s: real code of sm_90a."""

from axcore.testing import CompileSuite, GroupedMatmulSample, grouped_matmul_case

MOSAIC = 'custom_call_target="mosaic_gpu'


def grouped(name, *group_sizes, **fields):
    return grouped_matmul_case(GroupedMatmulSample(name=name, group_sizes=group_sizes, **fields))


class TestCompile(CompileSuite):
    plugin = "axl-gpu"
    targets = ("gpu-h100-8",)
    keys = ("grouped_matmul/gpu_grouped_matmul",)
    calls = {"gpu_grouped_matmul": (MOSAIC, 3)}

    def cases(self, kernel):
        return self.cases_of[kernel.name]

    cases_of = {
        "gpu_grouped_matmul": (
            grouped("experts", *(512,) * 8, num_rows=4096, width=1024, out_width=2048),
            grouped("one_group", 200, num_rows=256, width=128, out_width=64),
            grouped("odd", 100, 0, 80, num_rows=203, width=64, out_width=192),
            grouped("many_groups", *(8,) * 320, num_rows=2560, width=256, out_width=256),
        ),
    }
