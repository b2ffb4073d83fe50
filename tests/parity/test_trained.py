"""From weights to weights: written by transformers, trained here, read by transformers again."""

import numpy as np
import pytest
from parity_pairs import load_hf, model_logits, their_logits

from axcore.config import update_config
from axcore.interop import family_of
from axcore.modifiers import LoRA, Pretrained
from axcore.plugins import Hardware
from axcore.runs import export_run, load_run
from axcore.testing import small_experiment, trainer_on

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),  # peft's own
]
STEPS = 20
CPU = Hardware.parse("cpu-1")


@pytest.fixture
def published(tmp_path):
    """A folder that transformers wrote, and the config of a run that begins with it."""
    transformers = pytest.importorskip("transformers", reason="run make parity")
    import torch

    torch.manual_seed(3)
    cfg = small_experiment(tmp_path / "texts")
    fields = family_of(cfg.model)[2]
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**fields)).save_pretrained(
        tmp_path / "published"
    )
    changes = {"mesh": {"fsdp": 1}, "max_steps": STEPS, "logging.every_steps": 10}
    begun = Pretrained(path=str(tmp_path / "published")).apply(update_config(cfg, changes), CPU)
    return tmp_path / "published", begun


def tokens():
    return np.random.default_rng(1).integers(0, 264, (2, 32)).astype(np.int32)


def trained(cfg, directory):
    """Trains, and returns the run and what it does to the logits."""
    trainer_on(cfg, 1).run(directory, quiet=True)
    run = load_run(directory)
    assert run.step == STEPS
    return run, model_logits(run.model, run.state, tokens())


def test_a_model_of_transformers_is_trained_and_is_one_of_transformers_again(published, tmp_path):
    folder, cfg = published
    first = their_logits(load_hf(folder)[0], tokens())
    begun = trainer_on(cfg, 1)
    np.testing.assert_allclose(
        model_logits(begun.model, begun.first_state().model, tokens()), first, atol=1e-4
    )
    run, axcore = trained(cfg, tmp_path / "run")
    assert np.abs(axcore - first).max() > 0.5
    export_run(run, tmp_path / "exported")
    hf, complaints = load_hf(tmp_path / "exported")
    assert complaints == {}
    np.testing.assert_allclose(their_logits(hf, tokens()), axcore, atol=1e-4)


def test_adapters_that_a_run_trained_are_loaded_onto_what_it_began_with(published, tmp_path):
    peft = pytest.importorskip("peft", reason="run make parity")
    folder, cfg = published
    run, axcore = trained(LoRA(rank=4).apply(cfg, CPU), tmp_path / "run")
    export_run(run, tmp_path / "adapters")
    export_run(run, tmp_path / "merged", merged=True)
    config = peft.PeftConfig.from_pretrained(tmp_path / "adapters")
    assert config.base_model_name_or_path == str(folder)
    base = load_hf(folder)[0]
    assert np.abs(their_logits(base, tokens()) - axcore).max() > 0.1
    adapted = peft.PeftModel.from_pretrained(base, tmp_path / "adapters")
    np.testing.assert_allclose(their_logits(adapted, tokens()), axcore, atol=1e-4)
    merged = load_hf(tmp_path / "merged")[0]
    np.testing.assert_allclose(their_logits(merged, tokens()), axcore, atol=1e-4)
