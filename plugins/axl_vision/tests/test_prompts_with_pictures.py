"""`axcore generate --in` of conversations with pictures: files below a folder, and data URLs."""

import base64
import json

import numpy as np
import pytest
from axl_vision.models import llava
from chat_tokenizer import write_chat_tokenizer
from commands import call
from PIL import Image

from axcore.batch_inference import BatchConfig, BatchInference, PromptFile
from axcore.batch_inference.inputs import prompt_inputs
from axcore.config import evolve, update_config
from axcore.errors import DataError
from axcore.interop import to_hugging_face
from axcore.models import llama2
from axcore.runs import open_model

TEMPLATE = (
    "{% for message in messages %}{{ message.role.upper() + ': ' }}"
    "{% for part in message.content %}"
    "{% if part.type == 'image' %}{{ '<image>' }}{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
"""Reads lists of parts alone, as that of LLaVA."""

SPECIAL = ("<|turn|>", "<|end|>", "<image>")
VOCAB = 256 + len(SPECIAL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llava") / "model"
    text = update_config(llama2("toy"), {"vocab_size": VOCAB})
    cfg = llava(text, "toy", image_size=16, patch_size=8)
    to_hugging_face(folder, cfg, cfg.build().init(0), fields={"image_token_index": VOCAB - 1})
    return write_chat_tokenizer(folder, TEMPLATE, special=SPECIAL)


@pytest.fixture(scope="module")
def opened(folder):
    return open_model(folder)


@pytest.fixture
def pictures(tmp_path):
    """A folder with two pictures, and a third beside it."""
    (tmp_path / "photos").mkdir()
    for number, path in enumerate(("photos/a.png", "photos/b.png", "other.png")):
        pixels = np.random.default_rng(number).integers(0, 255, (20, 30, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / path)
    return tmp_path / "photos"


def asked(*urls, text="what?"):
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"messages": [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]}


def prompts(opened, folder, *lines):
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    inputs = prompt_inputs(opened, None, folder)
    return PromptFile(path, opened.tokenizer, max_length=64, inputs=inputs)


def test_a_file_and_a_data_url_of_it_are_the_same_prompt(opened, pictures):
    file = base64.b64encode((pictures / "a.png").read_bytes()).decode()
    absolute = (pictures / "a.png").as_uri()
    urls = ("a.png", f"data:image/png;base64,{file}", absolute, "b.png")
    first, second, third, other = prompts(opened, pictures, *map(asked, urls))
    assert sum(token >= 1 << 24 for token in first.tokens) == 4
    assert first.tokens == second.tokens == third.tokens == other.tokens
    digests = [one.inputs[0].digest for one in (first, second, third, other)]
    assert len({*digests[:3]}) == 1 != len({*digests})
    assert first.inputs[0].value.shape == (16, 16, 3)


def test_another_picture_in_the_file_is_another_file_of_prompts(opened, pictures):
    read = prompts(opened, pictures, asked("a.png"))
    before = read.summary(4)
    (pictures / "a.png").write_bytes((pictures / "b.png").read_bytes())
    after = read.summary(4)
    assert before.text_digest == after.text_digest
    assert before.token_digest != after.token_digest


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (asked("../other.png"), "is not below"),
        (asked("/etc/hostname"), "is not below"),
        (asked("link.png"), "is not below"),
        (asked("none.png"), "No such file"),
        (asked("prompts.jsonl"), "cannot be read"),
        (asked("http://127.0.0.1/a.png"), "is not fetched"),
        (asked("data:image/png;base64,%"), "not base64"),
        (asked("a.png", text="<image>"), "has 1 parts that are not text, and its text has 2 times"),
        (asked(""), "has no image_url.url"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "image_url only"),
    ],
)
def test_a_line_whose_picture_cannot_be_read_says_why(opened, pictures, line, said):
    (pictures / "link.png").symlink_to(pictures.parent / "other.png")
    (prompt,) = prompts(opened, pictures, line)
    assert isinstance(prompt.error, DataError)
    assert said in prompt.error.what


def test_other_lines_are_read_as_without_pictures(opened, pictures):
    lines = ({"prompt": "ab"}, {"messages": [{"role": "user", "content": "so?"}]}, {"prompt": "a"})
    plain, chat, both = prompts(opened, pictures, *lines[:2], {**lines[0], **lines[1]})
    assert plain.tokens == tuple(b"ab")
    assert bytes(chat.tokens) == b"USER: so?ASSISTANT:"
    assert "expected one of the fields" in both.error.what


@pytest.mark.slow
def test_answers_are_those_of_the_pictures(folder, opened, pictures):
    path = pictures / "prompts.jsonl"
    lines = [asked("a.png"), asked("b.png"), {"prompt": "ab"}, asked("a.png")]
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    answers = pictures / "answers.jsonl"
    call("generate", folder, "--in", path, "--out", answers, "--max-tokens", 4, "--temperature", 0)
    found = [json.loads(line)["samples"][0]["tokens"] for line in answers.read_text().splitlines()]
    assert found[0] == found[3]
    again = BatchInference(opened, path, answers, BatchConfig(max_tokens=4))
    assert again.summary.num_prompts == 4
    (pictures.parent / "elsewhere").mkdir()
    moved = path.rename(pictures.parent / "elsewhere" / "prompts.jsonl")
    with pytest.raises(DataError, match="No such file"):
        BatchInference(opened, moved, answers)
    cfg = evolve(BatchConfig(), inputs_root=str(pictures))
    assert BatchInference(opened, moved, answers, cfg).summary.num_bad == 0
