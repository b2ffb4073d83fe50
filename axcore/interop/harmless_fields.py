"""Fields of `config.json` that change no number of a forward pass, whatever the family.

Some are in every file, and are passed over without a word. Others are known by how they are named
to be read by no modelling code, or have a value that switches off what they are for: these are
passed over with a warning. What is left could matter.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

_GENERATION = """
    bad_words_ids begin_suppress_tokens diversity_penalty do_sample early_stopping
    encoder_no_repeat_ngram_size exponential_decay_length_penalty forced_bos_token_id
    forced_eos_token_id length_penalty max_length min_length no_repeat_ngram_size num_beam_groups
    num_beams num_return_sequences output_scores remove_invalid_values repetition_penalty
    return_dict_in_generate suppress_tokens temperature top_k top_p typical_p
"""
_LIBRARY = """
    architectures auto_map chunk_size_feed_forward cross_attention_hidden_size
    decoder_start_token_id dtype finetuning_task id2label is_decoder is_encoder_decoder label2id
    max_position_embeddings model_type num_labels output_attentions output_hidden_states
    output_router_logits prefix problem_type return_dict sep_token_id task_specific_params
    tf_legacy_loss tie_encoder_decoder tokenizer_class torch_dtype torchscript transformers_version
    use_bfloat16
"""
_TRAINING = "attention_dropout initializer_range router_jitter_noise"
_TOKENS = "bos_token_id eos_token_id pad_token_id"
IRRELEVANT = frozenset(
    f"_name_or_path pretraining_tp quantization_config use_cache {_TOKENS} {_TRAINING} {_LIBRARY} "
    f"{_GENERATION}".split()
)
"""Fields of any family that rotates positions, which change no number of a forward pass.

Quantized weights are dequantized as they are read. What texts are generated with does not belong to
the model here.
"""

WITHOUT_READER = (
    # The library's own state: _attn_implementation, _experts_implementation, _commit_hash.
    r"_.+",
    # Written by tools and other libraries.
    r"transformers\.js_config|unsloth_\w+|is_llama_config|predict_special_tokens|output_past",
    # Training alone: rates of dropout, how weights begin, weights of further losses.
    r"(\w+_)?(p?drop|dropout)(_(rate|prob|p))?",
    r"(\w+_)?(initializer_(range|factor|cutoff_factor)|init_(std|method|scale|device))",
    r"(\w+_)?(aux|z|balance)_loss(_\w+)?|\w+_loss_(coef|coeff|weight|alpha)",
    # Lengths of rows: positions that are rotated have no last one.
    r"n_ctx|seq(uence)?_len(gth)?|(model_)?max_(model_len|seq(uence)?_len(gth)?|length)",
    # How it is computed, not what: caches, kernels, checkpointing, precision of a softmax.
    r"cache_implementation|attn_implementation|(use_)?(flash|fused|memory_efficient)_\w+",
    r"gradient_checkpointing|ep_size|\w+_in_fp32|\w+_tp_plan",
)
"""Names, as regular expressions, of fields that no modelling code reads for a forward pass."""


def _is_off(value: Any) -> bool:
    return value is False


def _is_none_of_it(value: Any) -> bool:
    return isinstance(value, int | float) and value == 0


def _multiplies_by_one(value: Any) -> bool:
    return isinstance(value, int | float) and value is not True and value == 1


NEUTRAL: tuple[tuple[str, Callable[[Any], bool]], ...] = (
    # Not use_rope and its like, which are on where nothing is said.
    (r"use_(?!rope$|rotary|positional)\w+|\w*bias|rope_interleaved", _is_off),
    (r"(num|n)_\w+|\w+_(size|coef|rate|prob)", _is_none_of_it),
    (r"\w+_(multiplier|factor|scale|scaling)", _multiplies_by_one),
)
"""Names of fields, and the values of them that switch off what they are for."""


def is_harmless(name: str, value: Any) -> bool:
    """Whether a field that no entry of a map knows changes no number of a forward pass."""
    if value is None or value in ("", [], {}) or any(re.fullmatch(p, name) for p in WITHOUT_READER):
        return True
    return any(re.fullmatch(pattern, name) and is_neutral(value) for pattern, is_neutral in NEUTRAL)


def sorted_out(values: Mapping[str, Any], unread: frozenset[str]) -> tuple[list[str], list[str]]:
    """Returns the names of fields that are harmless, and of those that could matter.

    Args:
        values: The fields that no entry of a family's map knows.
        unread: Names that no modelling code of the family reads.
    """
    harmless = {name for name in values if name in unread or is_harmless(name, values[name])}
    return sorted(harmless), sorted(values.keys() - harmless)
