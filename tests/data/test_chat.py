"""Conversations as tokens: templates in a sandbox, special tokens that they write out."""

import json

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from axcore.config import evolve
from axcore.data import ChatTemplate, HuggingFaceTokenizer, tokenizer_in
from axcore.errors import DataError

SPECIAL = ("<|begin|>", "<|turn|>", "<|end|>", "<|stop|>")

TURNS = """{{ bos_token }}
{%- for message in messages %}
    {%- if message.role not in ('user', 'assistant') %}
        {{- raise_exception('no role ' + message.role) }}
    {%- endif %}
    {{- '<|turn|>' + message.role }}:
    {%- generation %} {{ message.content | trim }}{% endgeneration %}<|end|>
    {%- if loop.index > 8 %}{% break %}{% endif %}
{%- endfor %}
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- if add_generation_prompt %}<|turn|>assistant:{% endif %}"""

TALK = ({"role": "user", "content": " Grüße! "}, {"role": "assistant", "content": "Hi <b>"})


@pytest.fixture
def folder(tmp_path):
    """A model's folder, with a tokenizer of bytes, as it is published."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(
        models.BPE({letter: number for number, letter in enumerate(alphabet)}, [])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL[:3]))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", 256)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    settings = {
        "bos_token": {"content": "<|begin|>", "lstrip": False},
        "eos_token": "<|end|>",
        "pad_token": None,
        "chat_template": "an older template",
        "added_tokens_decoder": {"259": {"content": "<|stop|>", "special": True}},
    }
    write(tmp_path / "tokenizer_config.json", settings)
    write(tmp_path / "generation_config.json", {"eos_token_id": [258, 259]})
    (tmp_path / "chat_template.jinja").write_text(TURNS)
    return tmp_path


def write(path, content):
    path.write_text(json.dumps(content))


def test_a_folder_tells_all_of_its_tokenizer(folder):
    cfg = tokenizer_in(folder)
    assert cfg.end_tokens == ("<|end|>", "<|stop|>")
    tokenizer = cfg.build()
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (256, 258, 258)
    assert tokenizer.end_ids == (258, 259)
    assert tokenizer.vocab_size == 260


def test_a_begin_that_the_tokenizer_itself_does_not_add_is_left_out(folder):
    content = json.loads((folder / "tokenizer.json").read_text())
    write(folder / "tokenizer.json", {**content, "post_processor": None})
    cfg = tokenizer_in(folder)
    assert cfg.build().bos_id is None
    assert evolve(cfg, bos_token="<|begin|>").build().bos_id == 256


def test_without_names_of_tokens_the_first_end_of_answers_ends_documents(folder):
    (folder / "tokenizer_config.json").unlink()
    (folder / "generation_config.json").unlink()
    write(folder / "config.json", {"eos_token_id": [258, 257]})
    cfg = tokenizer_in(folder)
    assert (cfg.eos_token, cfg.end_tokens) == ("<|end|>", ("<|turn|>",))
    assert cfg.build().end_ids == (258, 257)


def test_tokens_that_only_the_map_of_special_tokens_names_are_read(folder):
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["eos_token"]
    write(folder / "tokenizer_config.json", settings)
    (folder / "generation_config.json").unlink()
    tokens = {"eos_token": {"content": "<|end|>"}, "bos_token": "<|turn|>"}
    write(folder / "special_tokens_map.json", tokens)
    tokenizer = tokenizer_in(folder).build()
    assert tokenizer.eos_id == 258
    assert tokenizer.bos_id == 256, "what the settings name goes first"


def test_a_conversation_has_special_tokens_where_the_template_writes_them(folder):
    tokenizer = tokenizer_in(folder).build()
    tokens = tokenizer.encode_chat(TALK)
    text = "<|begin|><|turn|>user: Grüße!<|end|><|turn|>assistant: Hi <b><|end|><|turn|>assistant:"
    assert tokens.tolist() == tokenizer.encode_placed(text).tokens.tolist()
    assert [token for token in tokens if token >= 256] == [256, 257, 258, 257, 258, 257]
    assert tokenizer.decode(tokens) == "user: Grüße!assistant: Hi <b>assistant:"
    answered = tokenizer.encode_chat(TALK, add_generation_prompt=False)
    assert answered.tolist() == tokens[: len(answered)].tolist()


def test_documents_do_not_end_where_they_write_a_special_token(folder):
    tokenizer = tokenizer_in(folder).build()
    assert max(tokenizer.encode("a<|end|>b")) < 256
    assert tokenizer.encode_placed("a<|end|>b").tokens.tolist()[1] == 258


def test_json_in_a_template_is_not_escaped_as_in_html(folder):
    template = tokenizer_in(folder).build().chat_template
    assert '[{"name": "<ß>"}]' in template.render(TALK, tools=[{"name": "<ß>"}])


def test_a_conversation_that_a_template_refuses_says_why(folder):
    with pytest.raises(DataError, match="does not take this conversation: no role wizard") as e:
        tokenizer_in(folder).build().encode_chat([{"role": "wizard", "content": "!"}])
    assert "['wizard']" in e.value.hint
    assert e.value.where.endswith("chat_template.jinja")


def test_a_template_is_kept_in_a_sandbox(folder):
    (folder / "chat_template.jinja").write_text("{{ messages.__class__.__mro__ }}")
    with pytest.raises(DataError, match="does not take this conversation: access to attribute"):
        tokenizer_in(folder).build().encode_chat(TALK)


def test_a_template_that_is_no_jinja_names_its_line():
    with pytest.raises(DataError, match=r"cannot be read as Jinja: .* in line 2"):
        ChatTemplate("\n{% for %}", {}, where="here")


def test_of_several_templates_the_default_one_is_taken(folder):
    (folder / "chat_template.jinja").unlink()
    several = [{"name": "rag", "template": "other"}, {"name": "default", "template": "{{ 1 + 1 }}"}]
    write(folder / "tokenizer_config.json", {"eos_token": "<|end|>", "chat_template": several})
    write(folder / "generation_config.json", {"eos_token_id": 258})
    assert tokenizer_in(folder).build().encode_chat(TALK).tolist() == [ord("2") - ord("!")]
    write(folder / "tokenizer_config.json", {"eos_token": "<|end|>", "chat_template": several[:1]})
    with pytest.raises(DataError, match="None of the chat templates is the default: there are rag"):
        tokenizer_in(folder).build()


NAMED = [
    {"name": "default", "template": "{{ messages[0].content }}"},
    {"name": "tool_use", "template": "{{ tools[0].name }}:{{ messages[0].content }}"},
    {"name": "rag", "template": "other"},
]


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_conversation_with_tools_has_the_template_for_them(folder, is_folder):
    settings = {"eos_token": "<|end|>", "chat_template": NAMED}
    (folder / "chat_template.jinja").unlink()
    if is_folder:
        settings["chat_template"] = "of older versions"
        (folder / "chat_template.jinja").write_text(NAMED[0]["template"])
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text(NAMED[1]["template"])
    write(folder / "tokenizer_config.json", settings)
    write(folder / "generation_config.json", {"eos_token_id": 258})
    template = tokenizer_in(folder).build().chat_template
    assert template.render(TALK, tools=[{"name": "add"}]) == "add: Grüße! "
    assert template.render(TALK) == template.render(TALK, tools=[]) == " Grüße! "
    assert [template.chosen(tools).reads_tools for tools in ([{}], None)] == [True, False]


def test_a_template_of_the_config_is_that_of_all_conversations(folder):
    write(folder / "tokenizer_config.json", {"eos_token": "<|end|>", "chat_template": NAMED})
    write(folder / "generation_config.json", {"eos_token_id": 258})
    template = tokenizer_in(folder).build().chat_template
    assert "add" not in template.render(TALK[:1], tools=None)
    assert template.chosen([{"name": "add"}]) is template


def test_a_tokenizer_without_a_template_says_so(folder):
    plain = HuggingFaceTokenizer.Config(path=str(folder / "tokenizer.json"), eos_token="<|end|>")
    with pytest.raises(DataError, match="A HuggingFaceTokenizer has no chat template"):
        plain.build().encode_chat(TALK)


def test_settings_of_another_tokenizer_are_refused(folder):
    added = {"7": {"content": "<|end|>", "special": True}}
    write(folder / "tokenizer_config.json", {"added_tokens_decoder": added})
    with pytest.raises(DataError, match=r"'<\|end\|>' is token 258 of .*, and 7 by its settings"):
        tokenizer_in(folder)


def test_an_end_that_the_vocabulary_lacks_is_refused(folder):
    write(folder / "generation_config.json", {"eos_token_id": [258, 999]})
    with pytest.raises(DataError, match=r"Texts end with token 999, which is not"):
        tokenizer_in(folder)


@pytest.mark.parametrize(
    ("content", "said"),
    [("{", "is not JSON"), ("[]", "is not a JSON object"), (None, "cannot be read")],
)
def test_settings_that_cannot_be_read_name_the_file(folder, content, said):
    path = folder / "tokenizer_config.json"
    path.unlink() if content is None else path.write_text(content)
    cfg = HuggingFaceTokenizer.Config(path=str(folder / "tokenizer.json"), settings_path=str(path))
    with pytest.raises(DataError, match=f"tokenizer_config.json.* {said}") as e:
        cfg.build()
    assert e.value.where == str(path)
