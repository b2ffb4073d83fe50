"""`axcore aot --rollouts`: one memory plan for trainer and engine, and times by phase."""

import json

import attrs
import jax
import pytest
from click.testing import CliRunner

from axcore.aot import RolloutReport, rollout_report_from_json, rollout_text
from axcore.aot.report.report import Report
from axcore.aot.rollouts import Phase, RolloutMemory, measure_rollouts
from axcore.aot.targets import find_aot_target
from axcore.cli.aot import _rollout_hint
from axcore.cli.aot import aot as aot_command
from axcore.config import update_config
from axcore.data import ByteTokenizer
from axcore.errors import ConfigError
from axcore.experiments.tiny import tiny
from axcore.inference import Engine, EngineConfig
from axcore.plugins import Hardware
from axcore.rollouts.experiments import grpo_reverse
from axcore.trainer import Trainer, resolve

MIB = 2**20
HARDWARE = Hardware.parse("cpu-2")


def phase(name, calls, call_s, temporaries):
    return Phase(name=name, rows=8, calls=calls, call_s=call_s, temporaries_bytes=temporaries * MIB)


REPORT = RolloutReport(
    train=Report(
        experiment="reverse",
        target="acme-x1-4",
        chips=4,
        compiler="acme",
        batch={"rows": 8, "tokens": 40},
        fits=True,
        lower_s=1.0,
        compile_s=1.0,
    ),
    prompts=4,
    group_size=4,
    prompt=8,
    new_tokens=32,
    steps=2,
    max_lag=0,
    max_num_seqs=8,
    rows=8,
    page_size=16,
    num_pages=24,
    page_bytes=MIB,
    memory=RolloutMemory(
        capacity_bytes=150 * MIB,
        parameters_bytes=10 * MIB,
        optimizer_bytes=20 * MIB,
        frozen_bytes=3 * MIB,
        copies_bytes=0,
        weight_bytes=5 * MIB,
        shared_bytes=2 * MIB,
        cache_bytes=24 * MIB,
        sampling_bytes=1 * MIB,
        program_bytes=7 * MIB,
    ),
    phases=(
        phase("weights", 1, 0.5, 2),
        phase("prompts", 4, 0.25, 6),
        phase("tokens", 62, 0.25, 9),
        phase("old log-probs", 2, 1.0, 30),
        phase("train steps", 2, 8.0, 70),
    ),
    compile_s=1.0,
)


def test_resident_and_the_largest_temporaries_are_what_a_device_needs():
    assert REPORT.memory.resident_bytes == (10 + 20 + 3 + 5 + 24 + 1 + 7) * MIB
    assert REPORT.peak_bytes == (70 + 70) * MIB
    assert REPORT.fits is True
    assert "fits: needs 140 MiB of 150 MiB, 10 MiB to spare" in rollout_text(REPORT)


def test_pages_that_fit_leave_memory_for_the_train_step():
    assert REPORT.pages_that_fit == 24 + 10
    full = attrs.evolve(REPORT, memory=attrs.evolve(REPORT.memory, capacity_bytes=130 * MIB))
    assert (full.fits, full.pages_that_fit) == (False, 24 - 10)
    assert _rollout_hint(full) == "--set data.engine.num_pages=14"
    assert "max_num_seqs" in _rollout_hint(attrs.evolve(full, new_tokens=14 * 16))


def test_rollouts_that_are_sampled_ahead_need_temporaries_of_both():
    ahead = attrs.evolve(REPORT, max_lag=1)
    assert ahead.temporaries_bytes == (9 + 70) * MIB
    assert "temporaries of both" in rollout_text(ahead)


def test_it_does_not_fit_where_a_compiler_refused_a_phase():
    old = attrs.evolve(REPORT.phases[3], refusal="RESOURCE_EXHAUSTED: too much")
    refused = attrs.evolve(REPORT, phases=(*REPORT.phases[:3], old, REPORT.phases[4]))
    assert refused.fits is False
    assert "refused   old log-probs: RESOURCE_EXHAUSTED" in rollout_text(refused)


def test_a_step_has_its_share_of_the_rollout_and_a_token_no_training():
    sampling = 0.5 + 4 * 0.25 + 62 * 0.25
    assert REPORT.sampling_s == sampling
    assert REPORT.step_s == (sampling + 2 * 1.0 + 2 * 8.0) / 2
    assert REPORT.chip_hours_per_step == pytest.approx(REPORT.step_s * 4 / 3600)
    tokens = 4 * 4 * 32
    per_million = sampling * 4 / 3600 / tokens * 1e6
    assert REPORT.chip_hours_per_million_tokens == pytest.approx(per_million)


def test_there_is_a_price_only_where_the_reader_gives_one():
    assert " for a chip-hour" not in rollout_text(REPORT)
    [line] = [one for one in rollout_text(REPORT, 2.0).splitlines() if "a step " in one]
    assert f"{REPORT.chip_hours_per_step * 2:.3g} at 2 for a chip-hour" in line


def test_nothing_is_predicted_where_a_time_is_not_known():
    old = attrs.evolve(REPORT.phases[3], call_s=None)
    unknown = attrs.evolve(REPORT, phases=(*REPORT.phases[:3], old, REPORT.phases[4]))
    assert (unknown.step_s, unknown.chip_hours_per_step) == (None, None)
    assert "no times: how fast acme-x1-4 computes is not known" in rollout_text(unknown)


def test_reports_survive_json():
    assert rollout_report_from_json(REPORT.to_json()) == REPORT


def small(**changes):
    """Returns `grpo-reverse` with one layer and few rows."""
    return update_config(
        grpo_reverse(),
        {
            "model.dim": 16,
            "**.hidden_dim": 16,
            "**.num_layers": 1,
            "data.batch_size": 8,
            "data.group_size": 4,
            "data.engine": EngineConfig(
                max_num_seqs=8,
                batch_size_buckets=(8,),
                max_num_batched_tokens=16,
                num_decode_steps=4,
                sampler_kinds=("plain",),
            ),
            **changes,
        },
    )


def measured(cfg, **options):
    resolved = resolve(cfg, HARDWARE)
    return measure_rollouts(resolved, find_aot_target(HARDWARE), experiment="it", **options)


@pytest.mark.slow
def test_weights_that_are_not_copied_are_those_that_an_engine_shares():
    """The report is compared with arrays of a real engine on the trainer's mesh."""
    cfg = small()
    report = measured(cfg)
    trainer = Trainer(resolve(cfg, HARDWARE), devices=jax.devices()[:2])
    state = trainer.compiler.jitted_init().model
    tokenizer, data = ByteTokenizer.Config().build(), trainer.data
    engine = Engine(trainer.model, state, tokenizer, data.engine_config)
    with engine:
        own = {one.data.unsafe_buffer_pointer() for one in shards(state)}
        weights = shards(engine._programs.weights.value)
        shared = [one for one in weights if one.data.unsafe_buffer_pointer() in own]
        caches = shards(engine._programs.caches)
        assert report.memory.shared_bytes == sum(one.data.nbytes for one in shared)
        assert report.memory.weight_bytes == sum(one.data.nbytes for one in weights) - sum(
            one.data.nbytes for one in shared
        )
        assert report.memory.cache_bytes == sum(one.data.nbytes for one in caches)


def shards(tree):
    """Returns what the first device has of arrays."""
    first = jax.devices()[0]
    parts = (part for leaf in jax.tree.leaves(tree) for part in leaf.addressable_shards)
    return [part for part in parts if part.device == first]


@pytest.mark.slow
def test_old_log_probs_and_copies_come_with_batches_that_are_trained_on_later():
    report = measured(
        small(**{"data.max_lag": 1, "data.epochs_per_rollout": 2, "task.kl.coefficient": 0.1})
    )
    calls = {one.name: one.calls for one in report.phases}
    assert (calls["old log-probs"], calls["train steps"], report.steps) == (1, 2, 2)
    assert report.memory.copies_bytes == 2 * report.memory.parameters_bytes
    assert report.memory.frozen_bytes == report.memory.parameters_bytes
    assert report.temporaries_bytes > max(one.temporaries_bytes for one in report.phases)


def test_an_experiment_without_rollouts_is_refused():
    with pytest.raises(ConfigError, match="tiny has no rollouts: its batches are of Data") as found:
        measure_rollouts(resolve(tiny(), HARDWARE), find_aot_target(HARDWARE), experiment="tiny")
    assert found.value.where == "data"
    assert "grpo-reverse" in found.value.hint


def test_a_prompt_that_no_row_holds_is_refused():
    with pytest.raises(ConfigError, match="prompt of 6 tokens and 4 sampled ones") as found:
        measured(small(), prompt=6)
    assert "--prompt 5" in found.value.hint


@pytest.mark.slow
def test_the_command_prints_the_plan_and_json_has_it(aot):
    sets = {"model.dim": 16, "**.hidden_dim": 16, "data.batch_size": 16}
    engine = {"max_num_seqs": 8, "batch_size_buckets": "(8,)"}
    sets |= {f"data.engine.{name}": value for name, value in engine.items()}
    options = [part for name, value in sets.items() for part in ("--set", f"{name}={value}")]
    ran = aot("grpo-reverse", "--target", "cpu-2", "--rollouts", "--json", *options)
    assert ran.exit_code == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["peak_bytes"] == found["memory"]["resident_bytes"] + found["temporaries_bytes"]
    assert found["rows"] == 8
    names = [one["name"] for one in found["phases"]]
    assert names == ["weights", "prompts", "tokens", "old log-probs", "train steps"]
    assert found["phases"][2]["calls"] == 2 * 3


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--rollouts", "--search"], "--rollouts does not go with --search"),
        (["--rollouts", "--context", "8"], "--rollouts does not go with --context"),
        (["--chip-hour", "2"], "--chip-hour only with --rollouts"),
    ],
)
def test_options_that_would_be_passed_over_are_refused(options, text):
    found = CliRunner().invoke(aot_command, ["grpo-reverse", "--target", "cpu-2", *options])
    assert found.exit_code == 2
    assert text in found.output
