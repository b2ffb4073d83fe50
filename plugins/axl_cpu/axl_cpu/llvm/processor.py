"""What kernels must know of a processor: the size of its vectors, and how many of them it holds."""

import functools

import attrs
import llvmlite.binding as llvm


@attrs.frozen(kw_only=True)
class Processor:
    """A kind of processor, as LLVM names it.

    Args:
        triple: LLVM's name of the platform.
        name: LLVM's name of the processor.
        features: What it has in addition, or lacks, in LLVM's notation: `+avx512f,-sse4a`.
        lanes: float32 numbers of a vector.
        num_vectors: Vectors that its registers hold.
        widens_halves: Whether it has an instruction that makes float16 numbers float32.
        pause: The instruction for a loop that waits, as a call in LLVM's language.
    """

    triple: str
    name: str
    features: str
    lanes: int
    num_vectors: int
    widens_halves: bool
    pause: str

    @classmethod
    def of(cls, triple: str, name: str, features: str) -> "Processor":
        """Return the processor of a platform with features.

        >>> Processor.of("x86_64-unknown-linux-gnu", "znver2", "+avx2,+fma").lanes
        8
        """
        if triple.startswith(("aarch64", "arm64")):
            lanes, num_vectors, pause = 4, 32, "void @llvm.aarch64.hint(i32 1)"
            widens_halves = True
        else:
            has = set(features.split(","))
            lanes = 16 if "+avx512f" in has else 8 if {"+avx2", "+fma"} <= has else 4
            num_vectors = 32 if lanes == 16 else 16
            widens_halves = "+f16c" in has
            pause = "void @llvm.x86.sse2.pause()"
        return cls(
            triple=triple,
            name=name,
            features=features,
            lanes=lanes,
            num_vectors=num_vectors,
            widens_halves=widens_halves,
            pause=pause,
        )


@functools.cache
def this_processor() -> Processor:
    """Return the processor that this process runs on."""
    features = llvm.get_host_cpu_features().flatten()
    return Processor.of(llvm.get_process_triple(), llvm.get_host_cpu_name(), features)
