"""Models of more than text: the text part is read, and gives the full model's logits."""

import numpy as np
import pytest
from parity_pairs import TOKENS, our_logits, their_logits

from axcore.interop import from_hugging_face
from axcore.models import CausalLM

pytestmark = pytest.mark.parity

TEXT = {
    "vocab_size": 264,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
}


def test_the_text_part_of_gemma_3_with_a_vision_tower_is_read_where_that_is_asked_for(tmp_path):
    transformers = pytest.importorskip("transformers", reason="run make parity")
    import torch

    torch.manual_seed(0)
    cfg = transformers.Gemma3Config(text_config=TEXT, vision_config=VISION, mm_tokens_per_image=4)
    model = transformers.Gemma3ForConditionalGeneration(cfg).float().eval()
    model.save_pretrained(tmp_path / "whole")
    part = from_hugging_face(tmp_path / "whole", kind=CausalLM.Config)
    assert type(part.config) is CausalLM.Config
    np.testing.assert_allclose(our_logits(part, TOKENS), their_logits(model, TOKENS), atol=1e-4)


def test_llama_4_with_a_vision_tower_is_read_as_its_text_part(tmp_path):
    transformers = pytest.importorskip("transformers", reason="run make parity")
    import torch

    torch.manual_seed(0)
    sizes = ("sliding_window", "layer_types", "query_pre_attn_scalar", "rope_scaling")
    text = {name: value for name, value in TEXT.items() if name not in sizes}
    text |= {"attention_chunk_size": 6, "floor_scale": 4, "no_rope_layers": [1, 1, 0]}
    text |= {"intermediate_size_mlp": 64, "num_local_experts": 4, "interleave_moe_layer_step": 2}
    vision = {**VISION, "vision_output_dim": 16, "projector_input_dim": 16}
    vision |= {"projector_output_dim": 16}
    cfg = transformers.Llama4Config(text_config=text, vision_config=vision)
    model = transformers.Llama4ForConditionalGeneration(cfg).float().eval()
    with torch.no_grad():
        for param in model.parameters():  # experts are zero at first, and some are not set at all
            param.normal_(std=0.05)
    model.save_pretrained(tmp_path / "whole")
    axcore = our_logits(from_hugging_face(tmp_path / "whole"), TOKENS)
    np.testing.assert_allclose(axcore, their_logits(model, TOKENS), atol=1e-4)


def test_ministral_3_with_a_vision_tower_is_read_as_its_text_part(tmp_path):
    transformers = pytest.importorskip("transformers", reason="run make parity")
    import torch

    torch.manual_seed(0)
    others = ("sliding_window", "layer_types", "query_pre_attn_scalar", "rope_scaling")
    text = {name: value for name, value in TEXT.items() if name not in others}
    yarn = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "beta_fast": 32.0}
    yarn |= {"beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
    yarn["original_max_position_embeddings"] = 8
    text |= {"model_type": "ministral3", "rope_parameters": yarn}
    vision = {**VISION, "model_type": "pixtral", "head_dim": 8}
    untied = {"tie_word_embeddings": False}
    cfg = transformers.Mistral3Config(text_config=text, vision_config=vision, **untied)
    model = transformers.Mistral3ForConditionalGeneration(cfg).float().eval()
    model.save_pretrained(tmp_path / "whole")
    axcore = our_logits(from_hugging_face(tmp_path / "whole"), TOKENS)
    np.testing.assert_allclose(axcore, their_logits(model, TOKENS), atol=1e-4)


EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}


@pytest.mark.parametrize(("kind", "experts"), [("Qwen3_5", {}), ("Qwen3_5Moe", EXPERTS)])
def test_qwen_3_5_with_a_vision_tower_is_read_as_its_text_part(kind, experts, tmp_path):
    transformers = pytest.importorskip("transformers", reason="run make parity")
    import torch

    torch.manual_seed(0)
    others = ("sliding_window", "layer_types", "query_pre_attn_scalar", "rope_scaling")
    text = {name: value for name, value in TEXT.items() if name not in others}
    text |= {"full_attention_interval": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
    text |= {"linear_key_head_dim": 8, "linear_value_head_dim": 16, **experts}
    rope = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
    text["rope_parameters"] = {**rope, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
    vision = {"hidden_size": 16, "intermediate_size": 16, "depth": 1, "num_heads": 2}
    vision |= {"out_hidden_size": 64, "num_position_embeddings": 16}
    cfg = getattr(transformers, f"{kind}Config")(text_config=text, vision_config=vision)
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(cfg).float().eval()
    with torch.no_grad():
        for param in model.parameters():
            param += 0.05 * torch.randn_like(param)
    model.save_pretrained(tmp_path / "whole")
    expected = their_logits(model, TOKENS)
    read = from_hugging_face(tmp_path / "whole")
    np.testing.assert_allclose(our_logits(read, TOKENS), expected, atol=1e-4)
    model.save_pretrained(tmp_path / "published", save_original_format=False)
    read = from_hugging_face(tmp_path / "published")
    np.testing.assert_allclose(our_logits(read, TOKENS), expected, atol=1e-4)
