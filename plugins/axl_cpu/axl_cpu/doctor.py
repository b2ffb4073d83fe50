"""`axcore doctor`: does LLVM compile for this processor, and how wide are its vectors?"""

from collections.abc import Iterator

from axcore.plugins import Finding


def llvm() -> Iterator[Finding]:
    """Look at LLVM and at the processor."""
    import llvmlite.binding as llvm

    from axl_cpu.llvm.processor import this_processor
    from axl_cpu.llvm.xla_ffi import interface_problem

    if problem := interface_problem():
        yield Finding(
            "error", f"axl-cpu {problem}", "install a jaxlib that axl-cpu was tested with"
        )
    processor = this_processor()
    version = ".".join(map(str, llvm.llvm_version_info))
    says = f"LLVM {version} for {processor.name}: {processor.lanes} float32 numbers at a time"
    if processor.triple.startswith(("x86_64", "amd64")):
        yield Finding("ok", says)
    else:
        yield Finding(
            "warning",
            f"{says}; kernels never ran on {processor.triple}",
            "compare answers with those under AXCORE_BLOCK=axl-cpu, which leaves all to XLA",
        )
