"""Experiments with large models run, at a toy size, on a corpus and a tokenizer of the user's."""

import json

import jax
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from axcore.config import evolve
from axcore.errors import ConfigError
from axcore.experiments.named import load_experiment
from axcore.models import llama2
from axcore.testing import trainer_on

SMALL = (
    "data.seq_len=32",
    "data.batch_size=4",
    "data.validation_fraction=0.2",
    "data.validation_batches=1",
    "learner.schedule.warmup_steps=2",
    "learner.schedule.peak=0.01",
    "max_steps=8",
    "logging.every_steps=1",
)


@pytest.fixture
def corpus(tmp_path):
    """A folder of JSON lines, and a tokenizer.json with the special tokens of Llama 2."""
    words = [f"w{number}" for number in range(40)]
    lines = (json.dumps({"text": " ".join(words[i:] + words[:i])}) for i in range(40))
    (tmp_path / "text.jsonl").write_text("\n".join(lines))
    vocabulary = {word: i for i, word in enumerate(["<unk>", "<s>", "</s>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return (
        f"data.source.folder={tmp_path}",
        f"data.tokenizer.path={tmp_path / 'tokenizer.json'}",
    )


@pytest.mark.slow
def test_llama2_learns_in_bfloat16_with_master_weights_in_float32(corpus, tmp_path):
    cfg = load_experiment("llama2-7b", (*SMALL, *corpus))
    cfg = evolve(cfg, model=evolve(llama2("toy"), dtypes=cfg.model.dtypes))
    losses = []
    trainer = trainer_on(cfg, 1)
    result = trainer.run(
        tmp_path / "run", [lambda event: losses.append(getattr(event, "metrics", {}).get("loss"))]
    )
    seen = [loss for loss in losses if loss is not None]
    assert seen[-1] < seen[0] - 0.5
    assert {leaf.dtype.name for leaf in jax.tree.leaves(result.state.model)} == {"float32"}
    assert str(trainer.model.dtypes.compute) == "bfloat16"


def test_what_the_user_must_say_is_asked_for_at_once():
    with pytest.raises(ConfigError, match="lacks 2 required fields") as error:
        load_experiment("llama2-7b").build()
    assert "data.source.folder" in error.value.what
    assert "data.tokenizer.path" in error.value.what
