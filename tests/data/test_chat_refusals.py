# ruff: noqa: RUF001 - of DeepSeek's marks
"""Chat templates that lose something: each is named with its line, and nothing is trained on."""

from pathlib import Path

import pytest
from chat_families import FAMILIES, RECORDS, TALK, shown, tokenizer_of
from chat_tokenizer import write_chat_tokenizer

from axcore.data import ChatFiles, ChatTemplate, tokenizer_in
from axcore.data.chat import chat_answers
from axcore.data.chat.chat_answers import find_answers
from axcore.data.chat.chat_tokens import tokenize_chat
from axcore.data.chat.conversation import read_conversation
from axcore.errors import DataError

BUNDLED = Path(chat_answers.__file__).parent / "templates"

R1 = """{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}
        {{- '<｜User｜>' + message['content'] }}
    {%- else %}
        {%- set content = message['content'] %}
        {%- if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}
        {{- '<｜Assistant｜>' + content + eos_token }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<｜Assistant｜><think>\\n' }}
{%- endif %}"""
"""As DeepSeek-R1-Distill: drops thinking everywhere, and asks with an opened one."""

QWQ = """{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
        {{- '<|im_start|>assistant\\n' + content + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n<think>\\n' }}
{%- endif %}"""
"""As QwQ-32B, likewise."""

INLINE = [TALK[0], {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nFirst."}]


def answers(source, messages, **record):
    """Returns the texts to train on."""
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}, where="here")
    chat = read_conversation({"messages": messages, **record})
    return find_answers(chat, template, role="assistant")


def marked(found):
    """Returns texts with ⟦ and ⟧ around their answers."""
    texts = []
    for one in found:
        text = one.text
        for begin, end in reversed(one.spans):
            text = f"{text[:begin]}⟦{text[begin:end]}⟧{text[end:]}"
        texts.append(text)
    return texts


@pytest.mark.parametrize(("source", "name"), [(R1, "deepseek-r1.jinja"), (QWQ, "qwq.jinja")])
@pytest.mark.parametrize(
    ("messages", "said"),
    [
        (TALK[:2], r"asks for answers with '<think>\\n', which .* message 2.*: line 1[02] of"),
        (INLINE, r"leaves out the thinking of message 2, .*: line [48] of"),
        (RECORDS["think"]["messages"], r"leaves out the thinking of message 2, .*: line [48] of"),
    ],
)
def test_thinking_that_is_dropped_is_refused_with_the_template_to_use(source, name, messages, said):
    with pytest.raises(DataError, match=said) as e:
        answers(source, messages)
    assert e.value.where == "here"
    assert e.value.hint.endswith(f"data.tokenizer.chat_template_path={BUNDLED / name}")


@pytest.mark.parametrize(
    ("name", "record", "wanted"),
    [
        (
            "deepseek-r1",
            "talk",
            [
                "<s><｜User｜>One?<｜Assistant｜><think>\n⟦\n</think>\n\nFirst.</s>⟧",
                "<s><｜User｜>One?<｜Assistant｜>First.</s><｜User｜>Two?<｜Assistant｜><think>\n"
                "⟦\n</think>\n\nSecond.</s>⟧",
            ],
        ),
        (
            "deepseek-r1",
            "think",
            [
                "<s><｜User｜>One?<｜Assistant｜><think>\n⟦Hm.\n</think>\n\nFirst.</s>⟧",
                "<s><｜User｜>One?<｜Assistant｜>First.</s><｜User｜>Two?<｜Assistant｜><think>\n"
                "⟦So.\n</think>\n\nSecond.</s>⟧",
            ],
        ),
        (
            "deepseek-r1",
            "tools",
            [
                "<s><｜User｜>One?<｜Assistant｜><think>\n⟦\n</think>\n\n<｜tool▁calls▁begin｜>"
                '<｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{"a": 1}\n```'
                "<｜tool▁call▁end｜><｜tool▁calls▁end｜></s>⟧<｜tool▁outputs▁begin｜>"
                "<｜tool▁output▁begin｜>3<｜tool▁output▁end｜><｜tool▁outputs▁end｜>⟦Three.</s>⟧"
            ],
        ),
        (
            "qwq",
            "think",
            [
                "<|im_start|>user\nOne?<|im_end|>\n<|im_start|>assistant\n<think>\n"
                "⟦Hm.\n</think>\n\nFirst.</s>⟧\n",
                "<|im_start|>user\nOne?<|im_end|>\n<|im_start|>assistant\nFirst.</s>\n"
                "<|im_start|>user\nTwo?<|im_end|>\n<|im_start|>assistant\n<think>\n"
                "⟦So.\n</think>\n\nSecond.</s>⟧\n",
            ],
        ),
    ],
)
def test_bundled_templates_keep_what_is_thought_of_the_last_question(
    name, record, wanted, tmp_path
):
    source = (BUNDLED / f"{name}.jinja").read_text()
    special = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    ends = "</s>" if name == "deepseek-r1" else "<|im_end|>"
    source = source.replace("<｜end▁of▁sentence｜>", "</s>")
    tokenizer = tokenizer_of(tmp_path, source, special=special, ends=[ends])
    chat = read_conversation({"messages": RECORDS[record]["messages"]})
    made = tokenize_chat(chat, tokenizer)
    found = [shown(one, special) for one in made]
    assert found == [one.replace("</s>", ends) for one in wanted]


@pytest.mark.parametrize(
    "family", ["llama-3", "phi-3.5-mini", "phi-4", "granite-3", "olmo-2", "smollm2", "chatml"]
)
def test_a_template_that_drops_tool_calls_is_refused_with_its_line(family):
    with pytest.raises(DataError, match=r"leaves out the tool call of message 2.*: line \d+ of"):
        answers(FAMILIES[family]["template"], **RECORDS["tools"])


def test_each_of_several_tool_calls_has_to_be_written():
    calls = [{"function": {"name": name, "arguments": {}}} for name in ("add", "sub")]
    talk = [TALK[0], {"role": "assistant", "content": "", "tool_calls": calls}]
    with pytest.raises(DataError, match=r"leaves out tool call 2 of message 2"):
        answers(FAMILIES["gpt-oss"]["template"], talk)


def test_marks_do_not_hide_what_is_dropped():
    marks = (
        "{% for m in messages %}{% generation %}{{ m.content }}</s>{% endgeneration %}{% endfor %}"
    )
    with pytest.raises(DataError, match=r"leaves out the tool call of message 2"):
        answers(marks, **RECORDS["tools"])
    empty = "{% for m in messages %}{{ m.content }}{% generation %}{% endgeneration %}{% endfor %}"
    with pytest.raises(DataError, match=r"generation blocks mark nothing of message 2"):
        answers(empty, TALK)


@pytest.mark.parametrize("record", ["system", "tools"])
def test_messages_that_an_answer_is_to_are_not_lost(record):
    source = "{% for m in messages %}{% if m.role in ('user', 'assistant') %}{{ m.role }}: {{ m }}"
    source += "{% endif %}{% endfor %}"
    with pytest.raises(DataError, match=r"leaves out message \d of '\w+'; what .* line 1"):
        answers(source, **RECORDS[record])


def test_an_answer_of_which_nothing_is_written_is_refused():
    source = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(DataError, match=r"writes nothing for message 2, of which .*: line 1 of"):
        answers(source, [TALK[0], {"role": "assistant", "content": ""}, *TALK[:2]])


def test_thinking_where_the_request_closes_it_names_the_flag():
    source = FAMILIES["qwen3"]["template"]
    thought = RECORDS["think"]["messages"][:2]
    chat = read_conversation({"messages": thought})
    template = ChatTemplate(source, {}, where="here")
    with pytest.raises(DataError, match=r"asks for answers with '\\n</think>") as e:
        find_answers(chat, template, role="assistant", values={"enable_thinking": False})
    assert "chat_template_kwargs={'enable_thinking': True}" in e.value.hint


def test_thinking_has_the_name_that_the_template_reads():
    source = FAMILIES["gpt-oss"]["template"]
    wanted = marked(answers(source, [TALK[0], {**TALK[1], "thinking": "Hm."}]))
    assert "analysis<|message|>Hm." in wanted[0]
    for name in ("reasoning", "reasoning_content"):
        assert marked(answers(source, [TALK[0], {**TALK[1], name: "Hm."}])) == wanted


@pytest.mark.parametrize("written", ["'' + call.arguments", "call.arguments"])
def test_arguments_are_text_where_a_template_takes_no_object(written):
    source = "{% for m in messages %}{{ m.role }}{{ m.content }}{% for c in m.tool_calls or [] %}"
    source += "{% set call = c.function %}{{ call.name + '(' }}{{ " + written
    source += " }}{{ ')' }}{% endfor %}{% endfor %}"
    (found,) = answers(source, RECORDS["tools"]["messages"])
    assert 'add({"a": 1})' in found.text


def test_no_token_is_of_a_prompt_and_of_an_answer(tmp_path):
    """A merged line end behind `<think>` is not what a server asks with."""
    said = FAMILIES["qwen3.5"]
    folder = write_chat_tokenizer(
        tmp_path, said["template"], special=said["special"], eos="<|im_end|>", merges=["Ċ Ċ"]
    )
    tokenizer = tokenizer_in(folder).build()
    chat = read_conversation({"messages": TALK[:2]})
    (made,) = tokenize_chat(chat, tokenizer)
    prompt = tokenizer.encode_chat(TALK[:1]).tolist()
    assert made.tokens[: len(prompt)].tolist() == prompt
    assert made.counts.tolist() == [False] * len(prompt) + [True] * (
        len(made.tokens) - len(prompt) - 1
    ) + [False]


def test_a_record_says_what_its_template_reads(tmp_path):
    said = FAMILIES["qwen3"]
    tokenizer = tokenizer_of(
        tmp_path / "model", said["template"], special=said["special"], ends=said["ends"]
    )
    path = tmp_path / "chats.jsonl"
    path.write_text(
        '{"messages": [{"role": "user", "content": "One?"}, {"role": "assistant", "content": "1"}]'
        ', "chat_template_kwargs": {"enable_thinking": false}}\n'
    )
    (made,) = ChatFiles.Config(path=str(path)).build().transformed(tokenizer)
    assert tokenizer.decode(made.tokens[made.loss_weights > 0]) == "1"


@pytest.mark.parametrize("family", ["chatml", "llama-2", "zephyr", "qwen3"])
def test_the_last_message_is_continued_behind_its_content(family):
    template = ChatTemplate(
        FAMILIES[family]["template"], {"bos_token": "<s>", "eos_token": "</s>"}, where="here"
    )
    text = template.render(TALK, continue_final_message=True)
    assert text.endswith("Second.")
    assert template.render(TALK).startswith(text)
    with pytest.raises(DataError, match="cannot be continued"):
        template.render([*TALK[:3], {**TALK[3], "content": ""}], continue_final_message=True)
