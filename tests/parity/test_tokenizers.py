"""A published tokenizer gives transformers' own tokens, text and conversations."""

import inspect
import json
import random

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from axcore.config import evolve
from axcore.data import ChatFiles, tokenizer_in

pytestmark = pytest.mark.parity

NUM_TEXTS = 10_000
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
PIECES = (
    *("a", "the ", "\x00", "😀", "👩‍👩‍👧", "e\u0301", "\u200d", "ﬁ", "\n", "\t", "  ", "漢字", "א"),
    *("\ufeff", "x" * 300, "def f(", "<|im", *SPECIAL),
)
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if tools %}{{ tools | tojson(indent=2) }}{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def bytes_in_pairs():
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return tokenizer, trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )


def unigrams():
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer, trainers.UnigramTrainer(
        vocab_size=400,
        special_tokens=[*SPECIAL, "<unk>"],
        unk_token="<unk>",
        show_progress=False,
    )


@pytest.fixture(scope="module", params=[bytes_in_pairs, unigrams])
def both(request, tmp_path_factory):
    """The tokenizer of a folder, by axcore and by transformers."""
    transformers = pytest.importorskip("transformers", reason="run make parity")
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer, trainer = request.param()
    tokenizer.train_from_iterator([inspect.getsource(json), inspect.getsource(random)], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer_in(folder).build(), transformers.AutoTokenizer.from_pretrained(folder)


def texts():
    draw = random.Random(0)
    for _ in range(NUM_TEXTS):
        length = draw.randrange(30)
        yield "".join(
            draw.choice(PIECES) if draw.random() < 0.7 else chr(draw.randrange(32, 0xD7FF))
            for _ in range(length)
        )


def test_every_text_has_the_same_tokens_and_gets_the_same_text_back(both):
    ours, theirs = both
    for text in texts():
        marked = ours.encode_placed(text).tokens.tolist()
        assert marked == theirs(text, add_special_tokens=False)["input_ids"]
        plain = theirs(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert ours.encode(text).tolist() == plain
        assert ours.decode(marked) == theirs.decode(marked, skip_special_tokens=True)


@pytest.mark.parametrize("tools", [None, [{"name": "add", "description": "<ß>"}]])
def test_a_conversation_has_the_same_tokens(both, tools):
    ours, theirs = both
    talk = [
        {"role": "user", "content": "  Grüße <|im_end|> "},
        {"role": "assistant", "content": "Hi 😀\n"},
    ]
    for asks in (True, False):
        wanted = theirs.apply_chat_template(talk, tools=tools, add_generation_prompt=asks)
        found = ours.encode_chat(talk, tools=tools, add_generation_prompt=asks)
        assert found.tolist() == wanted["input_ids"]


MARKED = TEMPLATE.replace(
    "{{ message.content | trim }}<|im_end|>\n",
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content | trim }}<|im_end|>"
    "{% endgeneration %}{% else %}{{ message.content | trim }}<|im_end|>{% endif %}\n",
)


def talks():
    """Yields conversations of several turns, of texts that tokenizers find hard."""
    draw = random.Random(1)
    some = [text for text in texts() if text.strip()]
    for _ in range(300):
        turns = draw.randrange(1, 5)
        yield [
            {"role": role, "content": draw.choice(some)}
            for _ in range(turns)
            for role in ("user", "assistant")
        ]


def test_the_loss_counts_the_tokens_that_transformers_says_are_answers(both, tmp_path):
    ours, theirs = both
    (tmp_path / "template.jinja").write_text(MARKED)
    ours = evolve(ours.config, chat_template_path=str(tmp_path / "template.jinja")).build()
    lines = "".join(json.dumps({"messages": talk}) + "\n" for talk in talks())
    (tmp_path / "chats.jsonl").write_text(lines)
    source = ChatFiles.Config(path=str(tmp_path / "chats.jsonl")).build()
    assert ours.chat_template.marks_answers
    for talk, found in zip(talks(), source.transformed(ours), strict=True):
        wanted = theirs.apply_chat_template(
            talk, chat_template=MARKED, return_assistant_tokens_mask=True, return_dict=True
        )
        assert found.tokens.tolist() == wanted["input_ids"]
        assert found.loss_weights.astype(int).tolist() == wanted["assistant_masks"]
