"""llama.cpp makes the tokens of text that the tokenizer makes, and text of tokens again."""

import numpy as np
import pytest
from click.testing import CliRunner
from gguf_models import write_model
from gguf_tokenizers import BYTE_LEVEL, SPACES, byte_level, merged_pieces, pieces, with_runs_last

from axcore.cli.main import group
from axcore.config import update_config
from axcore.data import ByteTokenizer, gguf_vocabulary
from axcore.inference import Sampling
from axcore.models import llama2
from axcore.runs import load_run
from axcore.testing import small_experiment, trainer_on

pytestmark = pytest.mark.parity

SIGNS = [*"abcdefgh  \n\t.,'0123456789-_", " the", "model", "words", "'LL", "'ll", "é", "e\u0301"]
SIGNS += ["日本", "\U0001f600", "\U0001f469\u200d\U0001f467", "\u200b", "\u00a0", "\x00", "\r\n"]
SIGNS += ["▁", "ß", "१२३", "  \n\n  ", "\u2019s", "\u017f"]
NUM_TEXTS = 500


def texts():
    generator = np.random.default_rng(3)
    for _ in range(NUM_TEXTS):
        yield "".join(generator.choice(SIGNS, generator.integers(0, 30)))
    yield from ("It's 2024,\nDON'T stop.", "a" * 1000, "   ", "", "1234567 words and we'll")


def load(path, tokenizer):
    llama_cpp = pytest.importorskip("llama_cpp", reason="run make parity-gguf")
    cfg = update_config(llama2("toy"), {"vocab_size": tokenizer.vocab_size + 3})
    vocabulary, _ = gguf_vocabulary(tokenizer, cfg.vocab_size)
    write_model(path, cfg, vocabulary=vocabulary)
    return llama_cpp.Llama(str(path), vocab_only=True, verbose=False)


def check(theirs, tokenizer, given=None):
    for text in given or texts():
        data = text.encode()
        ours = tokenizer.encode_prompt(text).tolist()
        found = theirs.tokenize(data, add_bos=True, special=False) if text else ours
        assert found == ours, repr(text)


def test_bytes(tmp_path):
    tokenizer = ByteTokenizer.Config().build()
    theirs = load(tmp_path / "model.gguf", tokenizer)
    check(theirs, tokenizer)
    for text in texts():
        assert theirs.detokenize(tokenizer.encode(text).tolist()) == text.encode()


@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_byte_level(name, tmp_path):
    make, ignore_merges = BYTE_LEVEL[name]
    tokenizer = byte_level(tmp_path / "tokenizer.json", make(), ignore_merges=ignore_merges)
    theirs = load(tmp_path / "model.gguf", tokenizer)
    if name == "tekken":  # of which llama.cpp has a near copy; `convert` says so
        check(theirs, tokenizer, (text.encode("ascii", "ignore").decode() for text in texts()))
        ours, found = tokenizer.encode("DONÉE"), theirs.tokenize("DONÉE".encode(), add_bos=False)
        assert len(ours) < len(found)
    else:
        check(theirs, tokenizer)


def test_pieces(tmp_path):
    tokenizer = pieces(tmp_path / "tokenizer.model")
    check(load(tmp_path / "model.gguf", tokenizer), tokenizer)


@pytest.mark.parametrize("spaces", SPACES)
def test_pieces_of_a_file_of_merges(spaces, tmp_path):
    source = pieces(tmp_path / "tokenizer.model")
    tokenizer = merged_pieces(tmp_path / "tokenizer.json", source, spaces=spaces)
    theirs = load(tmp_path / "model.gguf", tokenizer)
    if spaces == "metaspace":  # which adds no space to one; `convert` says that llama.cpp does
        check(theirs, tokenizer, (text for text in texts() if not text.startswith((" ", "▁"))))
    else:
        check(theirs, tokenizer)


def test_pieces_of_spaces_that_are_merged_last(tmp_path):
    merged_pieces(tmp_path / "tokenizer.json", pieces(tmp_path / "tokenizer.model"))
    tokenizer = with_runs_last(tmp_path / "tokenizer.json")
    spaced = [" " * n + "text" + " " * n for n in range(30)]
    check(load(tmp_path / "model.gguf", tokenizer), tokenizer, [*texts(), *spaced])


def test_text_of_a_run_is_the_same(tmp_path):
    cfg = update_config(small_experiment(tmp_path / "texts"), {"mesh": {"fsdp": 1}})
    trainer_on(cfg, 1).run(tmp_path / "run", quiet=True)
    file = f"gguf:{tmp_path / 'model.gguf'}"
    result = CliRunner().invoke(group, ["convert", str(tmp_path / "run"), file])
    assert result.exit_code == 0, result.output
    llama_cpp = pytest.importorskip("llama_cpp", reason="run make parity-gguf")
    kept = {"n_ctx": 64, "verbose": False, "n_threads": 1, "type_k": 0, "type_v": 0}
    theirs = llama_cpp.Llama(str(tmp_path / "model.gguf"), **kept)
    greedy = Sampling(temperature=0.0)
    ours = load_run(tmp_path / "run").generate("The ", max_tokens=16, sampling=greedy)
    found = theirs("The ", max_tokens=16, temperature=0.0, repeat_penalty=1.0)
    assert ours.num_tokens > 0
    text = found["choices"][0]["text"]
    assert text == ours.text.replace("\ufffd", "")  # bytes that are not text, which it leaves out
    assert text
