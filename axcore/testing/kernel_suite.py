"""`KernelSuite`: a kernel equals its op's reference, forward and backward, wherever it accepts.

A kernel is tried on every case of its op's contract that it accepts, in every dtype; what it
refuses, it must refuse with a reason. Values and gradients are compared under `jit`, shapes and
dtypes before values, since a comparison in float64 would forgive both.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import attrs
import jax
import jax.numpy as jnp
import pytest

from axcore.ops import Call
from axcore.ops.contract import TOLERANCES, relative_error
from axcore.parallel import make_mesh
from axcore.plugins import Hardware, HardwareFamily, Kernel, plugin_host
from axcore.registration import Record
from axcore.testing.contracts import Case, contract_of, functions_of
from axcore.testing.programs import description, narrow_arithmetic
from axcore.testing.suite import Suite

MESHES = ({"fsdp": 2, "model": 2}, {"data": 2, "seq": 2, "model": 2})
"""Rows and heads split in two each; over eight devices, two hold the same part."""

PRECISE = 1e-4
"""Largest error of a float32 call, whatever a suite's `tolerance` says: arithmetic in bfloat16
misses by ten times as much, and a sum in another order by a tenth."""

EXTREMES: Mapping[str, Callable[[Any], Any]] = {
    "whose first rows are zero": lambda x: x.at[:1].set(0) if x.ndim else x,
    "times 30": lambda x: 30 * x,
}
"""Changes of all float inputs of a call."""

_ALONE: dict[tuple[type, str, str, str], tuple[Any, Any]] = {}


@attrs.frozen
class Trial:
    """A kernel, a case that it accepts, and a dtype."""

    kernel: Kernel
    case: Case
    dtype: str


_TRIALS: dict[tuple[type, Kernel], list[Trial]] = {}


class KernelSuite(Suite):
    """Proves kernels: `class TestKernels(KernelSuite): plugin = "axl-acme"`.

    A kernel for hardware that is not at hand is skipped with the reason, unless `implementation`
    gives a form of it that runs here, interpreted for example.

    Attributes:
        dtypes: Dtypes of the inputs.
        case_names: Names of the cases to try; None for all.
        hardware: Targets that `requires` is asked about, in addition to a host of every known
            generation.
        narrow: By the key of a kernel, sums and functions that it computes in 16 bits on purpose,
            as the suite names them: "exp of bfloat16".
    """

    kind: ClassVar[type[Record]] = Kernel
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "bfloat16")
    case_names: ClassVar[tuple[str, ...] | None] = None
    hardware: ClassVar[tuple[str, ...]] = ()
    narrow: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def implementation(self, kernel: Kernel) -> Any:
        """Return the kernel's function to try; override to give one that runs on any device.

        Of a record that names a backward function, too, it is both, forward first.
        """
        reason = kernel.unsupported_hardware_reason(Hardware.detect())
        if reason is not None:
            pytest.skip(f"{kernel.key} does not run here: {reason}")
        return functions_of(kernel)

    def function(self, kernel: Kernel) -> Any:
        """Return the op by the kernel, as a function `(inputs, spec)` that JAX differentiates."""
        return contract_of(kernel.op).function(kernel, self.implementation(kernel))

    def extra_cases(self, kernel: Kernel) -> tuple[Case, ...]:
        """Return more cases than those of the op, such as sizes that only this kernel takes."""
        return ()

    def tolerance(self, dtype: str) -> tuple[float, float]:
        """Return the largest errors allowed of values and of gradients, relative."""
        allowed = TOLERANCES[dtype]
        return allowed.forward, allowed.backward

    # -- What is tried -----------------------------------------------------------------------

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make a test of each record, of each trial, or of the first trial of each record."""
        super().pytest_generate_tests(metafunc)
        for name, most in (("trial", None), ("first_trial", 1), ("compiler_trial", 1)):
            if name in metafunc.fixturenames:
                trials = [
                    trial
                    for kernel in self.records()
                    for trial in self._trials(kernel)[:most]
                    if name != "compiler_trial" or kernel.partitioned_by == "compiler"
                ]
                ids = [f"{one.kernel.key}-{one.case.name}-{one.dtype}" for one in trials]
                metafunc.parametrize(name, trials, ids=ids)

    def _cases(self, kernel: Kernel) -> Iterator[Case]:
        for case in (*contract_of(kernel.op).cases, *self.extra_cases(kernel)):
            if self.case_names is None or case.name in self.case_names:
                yield case

    def _trials(self, kernel: Kernel) -> list[Trial]:
        # Each test of the suite asks, and an answer traces the case: that would take seconds.
        key = (type(self), kernel)
        if key not in _TRIALS:
            _TRIALS[key] = [
                Trial(kernel, case, dtype)
                for case in self._cases(kernel)
                for dtype in self.dtypes
                if _answer(kernel, case, dtype) is None
            ]
        return _TRIALS[key]

    def _alone(self, trial: Trial) -> tuple[Any, Any]:
        """Return values and gradients on one device, computed once for the claims that ask."""
        key = (type(self), trial.kernel.key, trial.case.name, trial.dtype)
        if key not in _ALONE:
            _ALONE[key] = _values_and_gradients(self.function(trial.kernel), trial)
        return _ALONE[key]

    def _first_of(self, kernel: Kernel, dtype: str) -> Trial:
        """Return the first case that a kernel accepts in a dtype; skips the test without one."""
        for case in self._cases(kernel):
            if _answer(kernel, case, dtype) is None:
                return Trial(kernel, case, dtype)
        pytest.skip(f"{kernel.key} accepts no case in {dtype}")

    # -- Claims ------------------------------------------------------------------------------

    def test_kernel_accepts_some_case(self, record: Kernel) -> None:
        """Otherwise nothing below would prove anything."""
        cases = list(self._cases(record))
        assert self._trials(record), (
            f"{record.key} accepts none of {[case.name for case in cases]}: "
            f"{_answer(record, cases[0], self.dtypes[0])}; give it cases by extra_cases()"
        )

    def test_kernel_equals_the_reference_forward_and_backward(self, trial: Trial) -> None:
        """Shapes and dtypes are the reference's, and numbers within the dtype's tolerance."""
        kernel = self.function(trial.kernel)
        got = _values_and_gradients(kernel, trial)
        for what, actual, expected, allowed in zip(
            ("values", "gradients"),
            got,
            _reference(trial),
            self.tolerance(trial.dtype),
            strict=True,
        ):
            _check_alike(f"the {what} of {trial.kernel.key}", actual, expected)
            error = _worst(actual, expected)
            assert error <= allowed, f"the {what} are off by {error:.1e} of the largest one"

    def test_float32_call_is_computed_in_float32(self, record: Kernel) -> None:
        """Also where `dtypes` leave float32 out, or `tolerance` would allow for bfloat16."""
        trial = self._first_of(record, "float32")
        values, _ = self._alone(trial)
        error = _worst(values, _reference(trial)[0])
        assert error <= PRECISE, (
            f"{record.key} is off by {error:.1e} of the largest value in a float32 call; float32 "
            f"arithmetic comes within {PRECISE}: is something cast to bfloat16?"
        )

    @pytest.mark.parametrize("change", EXTREMES)
    def test_zeros_and_large_values_stay_finite(self, record: Kernel, change: str) -> None:
        """Rows that fill a batch up are zeros, and a model that diverges has large logits."""
        trial = self._first_of(record, "float32")
        reference = contract_of(record.op).reference
        (_, expected), (floats, got) = (
            _on_changed(function, trial, EXTREMES[change])
            for function in (reference, self.function(record))
        )
        lost = sum(
            int(jnp.sum(jnp.isfinite(want) & ~jnp.isfinite(one)))
            for one, want in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True)
        )
        assert not lost, (
            f"{record.key} gives {lost} numbers that are not finite where the reference's are, of "
            f"{len(floats)} arrays {change}"
        )

    def test_sums_and_functions_are_not_computed_in_16_bits(self, record: Kernel) -> None:
        """Inputs may have 16 bits, and products of them; what adds them up has 32."""
        trial = self._first_of(record, "bfloat16")
        kernel = self.function(record)
        inputs, spec = trial.case.make(trial.dtype)
        program = jax.make_jaxpr(lambda given: trial.case.run(kernel, given, spec))(inputs)
        allowed = self.narrow.get(record.key, ())
        found = [one for one in narrow_arithmetic(program) if one not in allowed]
        assert not found, (
            f"{record.key} computes {', '.join(found)}; cast to float32 before, and back after, or "
            "say in `narrow` that it is meant"
        )

    def test_second_call_gives_what_the_first_did(self, first_trial: Trial) -> None:
        """A kernel keeps nothing between calls: not in Python, and not in what it was given."""
        kernel = self.function(first_trial.kernel)
        inputs, spec = first_trial.case.make(first_trial.dtype)
        first, second = (
            description(
                jax.make_jaxpr(lambda given: first_trial.case.run(kernel, given, spec))(inputs)
            )
            for _ in range(2)
        )
        assert first == second, f"{first_trial.kernel.key} is another program the second time"

    def test_jit_changes_nothing(self, first_trial: Trial) -> None:
        """The kernel does the same outside of jit."""
        kernel = self.function(first_trial.kernel)
        inputs, spec = first_trial.case.make(first_trial.dtype)
        run = functools.partial(first_trial.case.run, kernel)
        jitted = jax.jit(lambda given: run(given, spec))(inputs)
        assert _worst(run(inputs, spec), jitted) <= self.tolerance(first_trial.dtype)[0]

    def test_vmap_equals_one_call_after_another(self, first_trial: Trial) -> None:
        """Call in a batch do not see each other."""
        kernel = self.function(first_trial.kernel)
        inputs, spec = first_trial.case.make(first_trial.dtype)
        other = jax.tree.map(lambda x: -x / 2 if _is_float(x) else x, inputs)
        run = jax.jit(lambda given: first_trial.case.run(kernel, given, spec))
        both = jax.tree.map(lambda *parts: jnp.stack(parts), inputs, other)
        apart = jax.tree.map(lambda *parts: jnp.stack(parts), run(inputs), run(other))
        assert _worst(jax.vmap(run)(both), apart) <= self.tolerance(first_trial.dtype)[0]

    def test_remat_changes_no_gradient(self, first_trial: Trial) -> None:
        """The forward pass computed again gives the gradients of the first one."""
        kernel = self.function(first_trial.kernel)
        _, gradients = self._alone(first_trial)
        _, again = _values_and_gradients(kernel, first_trial, remat=True)
        assert _worst(again, gradients) <= self.tolerance(first_trial.dtype)[1]

    @pytest.mark.parametrize("sizes", MESHES, ids=["2x2", "2x2x2"])
    def test_devices_of_a_mesh_give_what_one_device_does(
        self, compiler_trial: Trial, sizes: dict[str, int]
    ) -> None:
        """The compiler splits rows and heads; what the op splits is proven once for all kernels."""
        kernel = self.function(compiler_trial.kernel)
        alone = self._alone(compiler_trial)
        num_devices = math.prod(sizes.values())
        if jax.device_count() < num_devices:
            pytest.skip(f"needs {num_devices} devices; there are {jax.device_count()}")
        with jax.set_mesh(make_mesh(sizes, jax.devices()[:num_devices])):
            split = _values_and_gradients(kernel, compiler_trial)
        for got, wanted, allowed in zip(
            split, alone, self.tolerance(compiler_trial.dtype), strict=True
        ):
            assert _worst(got, wanted) <= allowed

    def test_predicates_answer_with_none_or_a_reason_and_ask_no_device(
        self, record: Kernel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So a choice can be made, and explained, for hardware that is not at hand."""
        calls = [case.abstract_call(dtype) for case in self._cases(record) for dtype in self.dtypes]
        unsupported_reason = (
            record.unsupported_reason.resolve()
            if record.unsupported_reason is not None
            else _anything
        )

        def refuse(*args: Any, **kwargs: Any) -> None:
            raise AssertionError("a predicate asked jax for devices; it is given values")

        for name in ("devices", "local_devices", "device_count", "default_backend"):
            monkeypatch.setattr(jax, name, refuse)
        for hardware in self._machines():
            assert _is_answer(record.requires(hardware)), f"requires({hardware.name})"
        for call in calls:
            assert _is_answer(unsupported_reason(call)), f"unsupported_reason({call})"
            assert unsupported_reason(call) == unsupported_reason(call)

    def _machines(self) -> list[Hardware]:
        known = [host for f in plugin_host().records(HardwareFamily) for host in f.hosts]
        unknown = Hardware(family="nobody", generation="unknown")
        return [*known, unknown, *(Hardware.parse(name) for name in self.hardware)]


@functools.cache
def _call(case: Case, dtype: str) -> Call:
    return case.abstract_call(dtype)


def _answer(kernel: Kernel, case: Case, dtype: str) -> str | None:
    if kernel.unsupported_reason is None:
        return None
    answer: str | None = kernel.unsupported_reason.resolve()(_call(case, dtype))
    return answer


def _anything(call: Call) -> None:
    return None


def _is_answer(answer: object) -> bool:
    return answer is None or (isinstance(answer, str) and bool(answer))


@functools.lru_cache(maxsize=64)
def _reference(trial: Trial) -> tuple[Any, Any]:
    return _values_and_gradients(contract_of(trial.kernel.op).reference, trial)


def _values_and_gradients(kernel: Any, trial: Trial, *, remat: bool = False) -> tuple[Any, Any]:
    """Return the outputs, and the gradients of their weighted sum by all float inputs."""
    floats, run = _differentiated(kernel, trial, remat=remat)
    gradients, outputs = run(floats)
    return outputs, gradients


def _on_changed(kernel: Any, trial: Trial, change: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Return the float inputs, changed, and outputs and gradients of them."""
    floats, run = _differentiated(kernel, trial)
    changed = [change(one).astype(one.dtype) for one in floats]
    return changed, run(changed)


def _differentiated(kernel: Any, trial: Trial, *, remat: bool = False) -> tuple[list[Any], Any]:
    """Return the float inputs of a case, and a program from them to gradients and outputs."""
    inputs, spec = trial.case.make(trial.dtype)
    floats, others = _parted(inputs)

    def loss(floats: Any) -> tuple[Any, Any]:
        outputs = trial.case.run(kernel, _joined(floats, others, inputs), spec)
        leaves = jax.tree.leaves(outputs)
        weighted = [jnp.sum(leaf.astype(jnp.float32) * _weights(leaf)) for leaf in leaves]
        return sum(weighted, jnp.zeros((), jnp.float32)), outputs

    differentiated = jax.checkpoint(loss) if remat else loss
    return floats, jax.jit(jax.grad(differentiated, has_aux=True))


def _weights(leaf: Any) -> Any:
    return jnp.cos(jnp.arange(leaf.size, dtype=jnp.float32)).reshape(leaf.shape)


def _parted(inputs: Any) -> tuple[list[Any], list[Any]]:
    """Return the float leaves, and all others with None where a float was."""
    leaves = jax.tree.leaves(inputs)
    floats = [leaf for leaf in leaves if _is_float(leaf)]
    return floats, [None if _is_float(leaf) else leaf for leaf in leaves]


def _joined(floats: list[Any], others: list[Any], like: Any) -> Any:
    left = iter(floats)
    leaves = [next(left) if leaf is None else leaf for leaf in others]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _is_float(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jnp.floating))


def _check_alike(what: str, actual: Any, expected: Any) -> None:
    """Check that arrays have the shapes and dtypes of others."""
    got, want = (
        [f"{leaf.dtype}{list(leaf.shape)}" for leaf in jax.tree.leaves(one)]
        for one in (actual, expected)
    )
    assert got == want, f"{what} are {', '.join(got)}; the reference gives {', '.join(want)}"


def _worst(actual: Any, expected: Any) -> float:
    pairs = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    return max(relative_error(got, want) for got, want in pairs)
