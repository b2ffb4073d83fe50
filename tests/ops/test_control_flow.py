"""Where hardware cannot branch, portable kernels do not, and give what they give elsewhere."""

import attrs
import jax
import jax.numpy as jnp
import pytest

from axcore.ops import KernelPolicy, use_policy
from axcore.ops.contract import relative_error
from axcore.plugins import Hardware, Kernel, plugin_host
from axcore.testing.contracts import contract_of, functions_of

PLAIN = Hardware(family="acme", generation="x1", chips=4)
BRANCHLESS = attrs.evolve(PLAIN, can_branch=False)


def traced(op, kernel_name, case_name, hardware):
    """Returns the values and gradients of a case, and the program as text."""
    contract = contract_of(op)
    (kernel,) = [one for one in plugin_host().records(Kernel) if one.key == f"{op}/{kernel_name}"]
    (case,) = [one for one in contract.cases if one.name == case_name]
    run = contract.function(kernel, functions_of(kernel))
    inputs, spec = case.make("float32")

    def loss(inputs):
        outputs = case.run(run, inputs, spec)
        leaves = jax.tree.leaves(outputs)
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in leaves), outputs

    step = jax.value_and_grad(loss, has_aux=True, allow_int=True)
    with use_policy(KernelPolicy(hardware=hardware)):
        return jax.tree.leaves(jax.jit(step)(inputs)), str(jax.make_jaxpr(step)(inputs))


@pytest.mark.parametrize(
    ("op", "kernel", "case"),
    [
        ("grouped_matmul", "portable", "uneven"),
        ("attention", "blockwise", "segments"),
        ("attention", "blockwise", "everything"),
        ("grouped_matmul", "portable", "leftover_rows"),
        ("grouped_matmul", "portable", "nothing"),
        ("decode_attention", "portable", "plain"),
        ("decode_attention", "portable", "everything"),
    ],
)
@pytest.mark.quick_one_in(14)
def test_portable_kernels_without_branches_give_what_they_give_with_them(op, kernel, case):
    wanted, branching = traced(op, kernel, case, PLAIN)
    got, program = traced(op, kernel, case, BRANCHLESS)
    for one, other in zip(got, wanted, strict=True):
        if jnp.issubdtype(other.dtype, jnp.floating):
            assert relative_error(one, other) <= 1e-6
    assert "cond[" in branching or "while[" in branching
    assert "cond[" not in program
    assert "while[" not in program
