"""Models: language models, causal and of masked tokens, and functions that return their configs.

A family is a function from a size's name to a config, `llama2("7b")`; those of causal models edit
what `transformer` returns. Every family has a size `toy`.
"""

from axcore.models.bert import bert, bert_classifier
from axcore.models.causal_lm import (
    FORMULA,
    TOY,
    CausalLM,
    Decoder,
    Head,
    Sizes,
    TiedHead,
    UntiedHead,
    check_vocab_size,
    flops_per_token,
    of_size,
    transformer,
)
from axcore.models.llama import llama2, llama3
from axcore.models.masked_lm import BiasedTiedHead, MaskedLM, TokenTransform
from axcore.models.mistral import mistral, mixtral
from axcore.models.modernbert import modernbert, modernbert_classifier
from axcore.models.multi_token_lm import MultiTokenBlock, MultiTokenLM
from axcore.models.multimodal import (
    MultimodalLM,
    language_model_of,
    multimodal,
    with_language_model,
)
from axcore.models.qwen2 import qwen2
from axcore.models.seq2seq_lm import ScaledTiedHead, Seq2SeqLM, TransformerStack
from axcore.models.t5 import t5, t5_v1_1
from axcore.models.text_classifier import TextClassifier
from axcore.models.whole_inputs import with_whole_inputs, without_whole_inputs

__all__ = [
    "FORMULA",
    "TOY",
    "BiasedTiedHead",
    "CausalLM",
    "Decoder",
    "Head",
    "MaskedLM",
    "MultiTokenBlock",
    "MultiTokenLM",
    "MultimodalLM",
    "ScaledTiedHead",
    "Seq2SeqLM",
    "Sizes",
    "TextClassifier",
    "TiedHead",
    "TokenTransform",
    "TransformerStack",
    "UntiedHead",
    "bert",
    "bert_classifier",
    "check_vocab_size",
    "flops_per_token",
    "language_model_of",
    "llama2",
    "llama3",
    "mistral",
    "mixtral",
    "modernbert",
    "modernbert_classifier",
    "multimodal",
    "of_size",
    "qwen2",
    "t5",
    "t5_v1_1",
    "transformer",
    "with_language_model",
    "with_whole_inputs",
    "without_whole_inputs",
]
