"""`axcore doctor`: does LLVM compile for this processor, and how wide are its vectors?"""

from collections.abc import Iterator

from axcore.plugins import Finding


def llvm() -> Iterator[Finding]:
    """Looks at LLVM and at the processor."""
    import llvmlite.binding as llvm

    from axl_cpu.llvm.processor import this_processor

    processor = this_processor()
    version = ".".join(map(str, llvm.llvm_version_info))
    says = f"LLVM {version} for {processor.name}: {processor.lanes} float32 numbers at a time"
    if processor.lanes < 8:
        yield Finding("warning", f"{says}; kernels were tried with 8 and 16 only")
    else:
        yield Finding("ok", says)
