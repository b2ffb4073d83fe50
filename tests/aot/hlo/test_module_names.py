"""From scopes to modules."""

import pytest

from axcore.aot.hlo.module_names import OUTSIDE_MODULES, ModuleNames, is_backward, module_paths
from axcore.config import update_config
from axcore.layers import Stack, TransformerLayer
from axcore.models import transformer

SIZES = {"vocab_size": 32, "dim": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 16}
BODY = "decoder/stack/while/body/closed_call"


@pytest.fixture(scope="module")
def names():
    return ModuleNames(module_paths(transformer(**SIZES).build()))


@pytest.mark.parametrize(
    ("op_name", "module"),
    [
        ("jit(step)/jvp(model)/decoder/embedding/jit(_take)/gather", "decoder.embedding"),
        (
            f"jit(step)/jvp(model)/{BODY}/layer/attention_residual/attention/q/dot/dot_general",
            "decoder.stack.layer.attention.q.dot",
        ),
        (
            f"jit(step)/transpose(jvp(model))/{BODY}/checkpoint/rematted_computation/layer/"
            "feed_forward_residual/feed_forward/gate/dot/dot_general",
            "decoder.stack.layer.feed_forward.gate.dot",
        ),
        (
            f"jit(step)/jvp(model)/{BODY}/layer/attention_residual/norm/mul",
            "decoder.stack.layer.attention_residual.norm",
        ),
        ("jit(step)/jvp(model)/(decoder/norm/mul:head/dot)", "decoder.norm"),
        ("jit(step)/learner/mul", "learner"),
        ("jit(step)/jvp(model)/add", "model"),
        ("jit(step)/add", OUTSIDE_MODULES),
        ("", OUTSIDE_MODULES),
    ],
)
def test_scopes_lead_to_the_innermost_module(names, op_name, module):
    assert names(op_name) == module


def test_modules_of_an_unrolled_stack_have_their_numbers():
    layer = transformer(**SIZES).decoder.stack.layer
    stack = Stack.Config(num_layers=2, layer=layer)
    model = update_config(transformer(**SIZES), {"decoder.stack": stack}).build()
    assert isinstance(model.decoder.stack.layer[1], TransformerLayer)
    names = ModuleNames(module_paths(model))
    found = names("jit(step)/jvp(model)/decoder/stack/layer_1/feed_forward_residual/norm/mul")
    assert found == "decoder.stack.layer_1.feed_forward_residual.norm"


def test_recomputation_is_no_backward_pass():
    assert is_backward("jit(step)/transpose(jvp(model))/head/dot")
    assert not is_backward("jit(step)/transpose(jvp(model))/checkpoint/rematted_computation/dot")
    assert not is_backward("jit(step)/jvp(model)/head/dot")
