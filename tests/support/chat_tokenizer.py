"""A published tokenizer of bytes, with a chat template, for tests."""

import json

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from axcore.data.tokenizers.gguf_vocabulary import byte_signs

SPECIAL = ("<|turn|>", "<|end|>")

TEMPLATE = """{%- for message in messages %}
    {%- if message.role not in ('user', 'assistant') %}
        {{- raise_exception('no role ' + message.role) }}
    {%- endif %}
    {{- '<|turn|>' + message.role }}:{{ message.content }}<|end|>
{%- endfor %}
{%- if add_generation_prompt %}<|turn|>assistant:{% endif %}"""

MARKED = TEMPLATE.replace(
    "{{ message.content }}<|end|>",
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|end|>"
    "{% endgeneration %}{% else %}{{ message.content }}<|end|>{% endif %}",
)
"""The same, with marks around what the model writes."""


def write_chat_tokenizer(
    folder, template=TEMPLATE, *, special=SPECIAL, eos="<|end|>", merges=(), added=()
):
    """Writes the files of a tokenizer: bytes by value, merged, special and `added` ones."""
    pairs = [tuple(merge.split()) for merge in merges]
    letters = [*byte_signs(), *map("".join, pairs)]
    tokenizer = tokenizers.Tokenizer(
        models.BPE({letter: number for number, letter in enumerate(letters)}, pairs)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    tokenizer.add_tokens(list(added))
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
    (folder / "chat_template.jinja").write_text(template)
    return folder
