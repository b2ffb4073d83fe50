"""`CompileSuite`: a kernel compiles, forward and backward, for hardware you do not have.

Lowering alone accepts kernels that overflow the memory of a chip or ask for layouts that it lacks;
the hardware's own compiler refuses them. One process compiles for one target:
`python -m axcore.testing.compile_tests` starts one for each.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import attrs
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from axcore.ops import Call, KernelPolicy, use_policy
from axcore.parallel import make_mesh
from axcore.plugins import Hardware, Kernel
from axcore.registration import Record
from axcore.testing.contracts import Case, contract_of, functions_of
from axcore.testing.suite import Suite


@attrs.frozen
class CompileTrial:
    """A kernel, a case that it is to be compiled for, and the target."""

    kernel: Kernel
    case: Case
    dtype: str
    target: str


class CompileSuite(Suite):
    """Compiles kernels: `class TestCompile(CompileSuite): plugin = "axl-acme"`.

    Attributes:
        targets: Hardware to compile for, for those kernels that are meant for it.
        dtypes: Dtypes of the inputs.
        calls: By kernel name, how the compiled program names its calls, and how many there are at
            least, forward and backward.
    """

    kind: ClassVar[type[Record]] = Kernel
    targets: ClassVar[tuple[str, ...]]
    dtypes: ClassVar[tuple[str, ...]] = ("bfloat16",)
    calls: ClassVar[dict[str, tuple[str, int]]]

    def cases(self, kernel: Kernel) -> tuple[Case, ...]:
        """Return the calls to compile, of sizes as models have them."""
        raise NotImplementedError

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make a test of each kernel, case and target."""
        super().pytest_generate_tests(metafunc)
        if "compile_trial" in metafunc.fixturenames:
            params = [
                pytest.param(
                    trial,
                    id=f"{trial.kernel.key}-{trial.case.name}-{trial.dtype}-{trial.target}",
                    marks=pytest.mark.compile(trial.target),
                )
                for trial in self._trials()
            ]
            metafunc.parametrize("compile_trial", params)

    def _trials(self) -> list[CompileTrial]:
        return [
            CompileTrial(kernel, case, dtype, target)
            for target in self.targets
            for kernel in self.records()
            if kernel.unsupported_hardware_reason(Hardware.parse(target)) is None
            for case in self.cases(kernel)
            for dtype in self.dtypes
        ]

    def test_kernel_compiles_forward_and_backward(
        self,
        compile_trial: CompileTrial,
        compile_devices: Sequence[Any],
        record_property: Callable[[str, object], None],
    ) -> None:
        """The compiler takes it, and the program calls it."""
        trial = compile_trial
        inputs, spec, call = trial.case.abstract(trial.dtype)
        assert _refusal(trial.kernel, call) is None
        mesh = make_mesh({"fsdp": len(compile_devices)}, compile_devices)
        policy = KernelPolicy(hardware=Hardware.parse(trial.target))
        with use_policy(policy), jax.set_mesh(mesh):
            program = jax.jit(_loss_and_gradient(trial, spec)).lower(_whole(inputs, mesh)).compile()
        memory = program.memory_analysis()
        if memory is not None:
            record_property("temporary_bytes", memory.temp_size_in_bytes)
        name, least = self.calls[trial.kernel.name]
        assert (program.as_text() or "").count(name) >= least


def _refusal(kernel: Kernel, call: Call) -> str | None:
    if kernel.unsupported_reason is None:
        return None
    answer: str | None = kernel.unsupported_reason.resolve()(call)
    return answer


def _loss_and_gradient(trial: CompileTrial, spec: Any) -> Any:
    kernel = contract_of(trial.kernel.op).function(trial.kernel, functions_of(trial.kernel))

    def loss(inputs: Any) -> Any:
        outputs = jax.tree.leaves(trial.case.run(kernel, inputs, spec))
        return sum(jnp.sum(leaf.astype(jnp.float32) ** 2) for leaf in outputs)

    return jax.value_and_grad(loss, allow_int=True)


def _whole(inputs: Any, mesh: Mesh) -> Any:
    """Return abstract inputs that every device holds whole; kernels take their parts."""
    whole = NamedSharding(mesh, PartitionSpec())  # type: ignore[no-untyped-call]
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole),  # type: ignore[no-untyped-call]
        inputs,
    )
