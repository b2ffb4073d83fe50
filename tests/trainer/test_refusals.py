"""What is wrong shows as one clear error, before the run directory is made."""

import sys

import pytest

from axcore.config import apply_overrides, evolve, from_dict, to_dict, update_config
from axcore.errors import ConfigError, DataError, KernelError, PluginError
from axcore.plugins import plugin_host
from axcore.trainer import Trainer


def refused(trainer, directory, error, match):
    with pytest.raises(error, match=match) as caught:
        trainer.run(directory)
    assert not directory.exists()
    return caught.value


def reading(cfg, folder):
    source = evolve(cfg.data.source, folder=str(folder))
    return evolve(cfg, data=evolve(cfg.data, source=source))


def test_a_missing_data_folder(toy_config, one_device, tmp_path):
    trainer = one_device(reading(toy_config, tmp_path / "nowhere"))
    refused(trainer, tmp_path / "run", DataError, "nowhere' does not exist")


def test_a_writer_without_its_library_is_named_before_data_is_read(
    toy_config, one_device, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "wandb", None)
    cfg = update_config(reading(toy_config, tmp_path / "nowhere"), {"logging.writers": ("wandb",)})
    match = "the metric writer 'wandb' needs wandb, which is not installed"
    error = refused(one_device(cfg), tmp_path / "run", ConfigError, match)
    assert (error.where, error.hint) == ("logging.writers", 'pip install "axcore[wandb]"')


def test_an_empty_data_folder(toy_config, one_device, tmp_path):
    (tmp_path / "text").mkdir()
    trainer = one_device(reading(toy_config, tmp_path / "text"))
    refused(
        trainer, tmp_path / "run", DataError, r"No file matches '\*\*/\*.txt'.*contains no files"
    )


def test_a_file_that_is_not_utf_8(toy_config, one_device, tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text/a.txt").write_bytes(b"caf\xe9")
    trainer = one_device(reading(toy_config, tmp_path / "text"))
    error = refused(trainer, tmp_path / "run", DataError, "a.txt is not UTF-8: byte 0xe9")
    assert error.where == f"{tmp_path}/text/a.txt, byte 3"


def test_a_kernel_pin_is_followed(small_config, one_device):
    pinned = one_device(update_config(small_config, {"kernels.pins": {"attention": "reference"}}))
    assert "attention: reference (core), pinned, on cpu-1" in str(pinned.kernel_plan())


def test_names_of_kernels_that_do_not_exist_are_listed_together(small_config, one_device):
    with pytest.raises(ConfigError) as error:
        one_device(
            update_config(
                small_config,
                {
                    "kernels.pins": {"atention": "portable", "cross_entropy": "refrence"},
                    "kernels.allow": ("portabel",),
                },
            )
        )
    lines = str(error.value).splitlines()
    assert lines[0].startswith("kernels.pins: unknown op 'atention'; did you")
    assert lines[1].startswith("kernels.pins['cross_entropy']: unknown kernel 'refrence'")
    assert lines[2].startswith("kernels.allow: unknown kernel 'portabel'; did you mean")


def test_a_broken_plugin(toy_trainer, tmp_path, monkeypatch):
    monkeypatch.setenv("AXCORE_BLOCK", "no-such-plugin")
    plugin_host.cache_clear()
    try:
        refused(toy_trainer, tmp_path / "run", PluginError, "AXCORE_BLOCK names 'no-such-plugin'")
    finally:
        monkeypatch.undo()
        plugin_host.cache_clear()


def test_a_vocabulary_smaller_than_the_tokenizers(small_config):
    with pytest.raises(
        ConfigError, match=r"vocab_size is 100, but the tokenizer has 2.. tokens"
    ) as e:
        update_config(small_config, {"model.vocab_size": 100}).build()
    assert e.value.where == "model.vocab_size"
    assert e.value.hint.startswith("--set model.vocab_size=2")


def test_all_counts_below_one_are_named_together(toy_config):
    with pytest.raises(ConfigError) as error:
        evolve(toy_config, max_steps=0, eval_every_steps=-1)
    assert error.value.what == (
        "max_steps is 0; expected 1 or more\neval_every_steps is -1; expected 1 or more"
    )


def test_a_template_lists_all_that_is_missing():
    with pytest.raises(ConfigError, match="lacks 3 required fields:\n  model\n  data\n  max_steps"):
        Trainer.Config().build()


@pytest.mark.slow
def test_nothing_held_out_trains_without_evaluation(toy_config, one_device, tmp_path):
    cfg = update_config(toy_config, {"data.validation_fraction": 0.0, "max_steps": 5})
    events = []
    result = one_device(cfg).run(tmp_path, [events.append])
    assert (result.is_complete, result.validation) == (True, {})
    assert "Evaluated" not in {type(event).__name__ for event in events}
    assert "validation" not in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_run_directory_in_use_is_refused(toy_trainer, tmp_path):
    from axcore.errors import CheckpointError
    from axcore.trainer import StepsDone

    caught = []

    def train_there_too(event):
        if isinstance(event, StepsDone) and event.step == 1:
            with pytest.raises(CheckpointError, match="already training here") as error:
                toy_trainer.run(tmp_path / "run")
            caught.append(error)

    assert toy_trainer.run(tmp_path / "run", [train_there_too]).is_complete
    assert len(caught) == 1


def test_a_pinned_kernel_that_is_for_other_hardware(small_config, one_device, tmp_path):
    trainer = one_device(
        update_config(small_config, {"kernels.pins": {"attention": "splash_attention"}})
    )
    with pytest.raises(KernelError, match="attention is pinned to splash_attention, which cannot"):
        trainer.run(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_field_of_an_earlier_run_is_refused_with_where_it_is_now(small_config):
    old = to_dict(small_config) | {"log_every_steps": 5, "allow_kernels": ["portable"]}
    with pytest.raises(ConfigError) as error:
        from_dict(old)
    assert error.value.what == (
        "Trainer.Config has no field 'log_every_steps'; it is now logging.every_steps\n"
        "Trainer.Config has no field 'allow_kernels'; it is now kernels.allow"
    )
    with pytest.raises(ConfigError, match=r"hint:   it is now rollback\.max_rollbacks"):
        apply_overrides(small_config, ["max_rollbacks=1"])
