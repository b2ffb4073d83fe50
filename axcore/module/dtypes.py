"""`DTypes`: in which precision a module stores, computes and returns."""

from typing import Literal

from axcore.config import config

DType = Literal["float32", "bfloat16", "float16", "float64"]


@config
class DTypes:
    """The dtypes of a module. None inherits from the parent; the root's are float32.

    Args:
        param: Stored parameters. What is trained is stored in float32, or in bfloat16 where its
            optimizer rounds that, as `LowPrecisionState` does; other learners refuse it.
        compute: What `self.weight` reads as, and so what most arithmetic runs in.
        output: What the module returns; by default what it computed.
    """

    param: DType | None = None
    compute: DType | None = None
    output: DType | None = None

    def inheriting(self, parent: "DTypes") -> "DTypes":
        """Return these dtypes with the parent's where they are None."""
        return DTypes(
            param=self.param or parent.param,
            compute=self.compute or parent.compute,
            output=self.output or parent.output,
        )


ROOT_DTYPES = DTypes(param="float32", compute="float32")
