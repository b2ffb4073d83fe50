"""`ExperimentSuite`: an experiment is complete, the same each time, and its step can be traced."""

from typing import Any, ClassVar

from axcore.config import evolve, from_json, render_config, to_json
from axcore.plugins import Experiment, HardwareFamily, MeshRule, plugin_host
from axcore.registration import Record
from axcore.testing.suite import Suite
from axcore.testing.tiny import trainer_on


class ExperimentSuite(Suite):
    """Proves experiments: `class TestExperiments(ExperimentSuite): plugin = "axl-acme"`."""

    kind: ClassVar[type[Record]] = Experiment

    def complete(self, cfg: Any) -> Any:
        """Return the config with data that needs no file; batches have the same shapes."""
        return evolve(cfg, data=cfg.data.for_shapes())

    def test_experiment_is_the_same_each_time(self, record: Experiment) -> None:
        """Nothing but the function decides what it is."""
        first, second = (record.fn.resolve()() for _ in range(2))
        assert first == second
        assert render_config(first) == render_config(second)

    def test_experiment_is_saved_and_read_back(self, record: Experiment) -> None:
        """A run directory contains it."""
        cfg = record.fn.resolve()()
        assert from_json(to_json(cfg)) == cfg

    def test_step_can_be_traced(self, record: Experiment) -> None:
        """Nothing is left to fill in, parts fit together, and kernels can be chosen."""
        trainer = trainer_on(self.complete(record.fn.resolve()()), 1)
        assert trainer.kernel_plan().choices

    def test_experiment_can_be_laid_out_on_hardware_that_has_a_mesh_rule(
        self, record: Experiment
    ) -> None:
        """Its own rules, and those of plugins, apply to it."""
        from axcore.trainer import resolve

        cfg = record.fn.resolve()()
        for machine in _machines(cfg):
            assert resolve(cfg, machine).config.mesh is not None


def _machines(cfg: Any) -> list[Any]:
    rules = (*cfg.mesh_rules, *plugin_host().records(MeshRule))
    hosts = [host for family in plugin_host().records(HardwareFamily) for host in family.hosts]
    return [host for host in hosts if any(rule.matches(host) for rule in rules)]
