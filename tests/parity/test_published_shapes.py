"""Published language models, shrunk in their sizes alone, give the numbers of transformers."""

import json
from typing import Any

import numpy as np
import pytest
from parity_pairs import TOKENS, our_logits, their_logits
from safetensors.numpy import load_file
from shrunk_configs import shrunk, texts

from axcore.interop import family_named, from_hugging_face, to_hugging_face

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:config.json has fields"),
    pytest.mark.filterwarnings("ignore:the export has no layers for multi-token prediction"),
]
TEXTS = texts()
CLOSE = 1e-5
"""Of the largest logit. Most differ by 1e-6 of it, Qwen3-Next by 4e-6."""
BUILT_AS = {"kimi_k2": "deepseek_v3"}
OF_OTHER_LAYERS = {
    "ibm-granite/granite-4.0-h-micro": {"intermediate_size"},
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": {"interleave_moe_layer_step"},
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": {"intermediate_size_mlp"},
    "meta-llama/Llama-4-Scout-17B-16E-Instruct, text part": {"intermediate_size_mlp"},
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": {"intermediate_size"},
}
"""Sizes of layers that a model does not have, and a period that is written as a list."""
OF_FILES = {"_name_or_path", "architectures", "dtype", "pad_token_id", "transformers_version"}
OF_FILES |= {"num_nextn_predict_layers"}  # it says which tensors are in a file
NAMES = {"gelu_new": "gelu_pytorch_tanh", "gelu_fast": "gelu_pytorch_tanh"}
"""Of one function."""


def config_of(values: Any) -> Any:
    """Returns the config of transformers that a `config.json` is."""
    import transformers

    family = values["model_type"]
    fields = {name: value for name, value in values.items() if name != "model_type"}
    cfg = transformers.AutoConfig.for_model(BUILT_AS.get(family, family), **fields)
    if (cfg.pad_token_id or 0) >= cfg.vocab_size:  # the default of its class, which torch refuses
        cfg.pad_token_id = None
    return cfg


def random_model(cfg: Any) -> Any:
    """Returns a model of transformers in which no number is zero or one."""
    import torch
    import transformers

    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(
        cfg, attn_implementation="eager", dtype=torch.float32
    )
    buffers = dict(model.named_buffers())
    arrays = [*model.parameters()]
    arrays += [buffers[name] for name in buffers if name.endswith("correction_bias")]
    with torch.no_grad():
        for array in arrays:
            array += 0.05 * torch.randn_like(array)
    return model.eval()


def contradictions(values: Any, written: Any) -> set[str]:
    """Returns the fields of transformers' class of which two configs do not say the same."""
    cfg = config_of(values)
    first, second = cfg.to_dict(), config_of(written).to_dict()
    known = type(cfg)().to_dict().keys() - OF_FILES
    # What one says by null, or leaves out, the other may say by its value.
    both = {name for name in known if first.get(name) is not None and name in second}
    return {name for name in both if not same(first[name], second[name])}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return all(same(one[name], other[name]) for name in one.keys() & other.keys())
    if isinstance(one, str):
        return NAMES.get(one, one) == NAMES.get(other, other)
    return bool(one == other)


def model_of(values: Any) -> Any:
    return family_named(values["model_type"]).read(values)


@pytest.mark.parametrize("name", TEXTS)
def test_a_published_model_has_the_logits_of_transformers_and_is_written_again(name, tmp_path):
    pytest.importorskip("transformers", reason="run make parity")
    values = shrunk(TEXTS[name])
    hf = random_model(config_of(values))
    hf.save_pretrained(tmp_path / "hf")
    saved = json.loads((tmp_path / "hf" / "config.json").read_text())
    (tmp_path / "hf" / "config.json").write_text(json.dumps(values))
    read = from_hugging_face(tmp_path / "hf")
    assert model_of(saved) == model_of(values)

    expected = their_logits(hf, TOKENS)
    largest = np.abs(expected).max()
    assert largest > 0.1
    np.testing.assert_allclose(our_logits(read, TOKENS), expected, rtol=0, atol=CLOSE * largest)

    to_hugging_face(tmp_path / "back", read.config, read.state)
    written = json.loads((tmp_path / "back" / "config.json").read_text())
    assert model_of(written) == model_of(values)
    assert contradictions(values, written) == OF_OTHER_LAYERS.get(name, set())
    before, after = (
        load_file(tmp_path / folder / "model.safetensors") for folder in ("hf", "back")
    )
    assert before.keys() == after.keys()
    assert [array for array in before if not np.array_equal(before[array], after[array])] == []
