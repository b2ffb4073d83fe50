"""The core, proven by the suites that it ships."""

import json

import pytest
from record_files import save_dataset, tar_of, write_array_record

from axcore.config import evolve, update_config
from axcore.data import (
    ArrayRecordFiles,
    ByteTokenizer,
    HuggingFaceDataset,
    JsonLines,
    StoredSource,
    TarFiles,
    TextFiles,
    build_store,
)
from axcore.data.teacher_cache import MANIFEST
from axcore.interop import HuggingFace, to_hugging_face
from axcore.models import llama2
from axcore.modifiers import LoRA
from axcore.plugins import Hardware
from axcore.rollouts.experiments import grpo_reverse
from axcore.testing import (
    DataSourceSuite,
    ExperimentSuite,
    KernelSuite,
    LauncherSuite,
    MeshRuleSuite,
    ModifierSuite,
    ObserverSuite,
    PluginSuite,
    SamplerSuite,
    StorageSuite,
    TokenizerSuite,
    WriterSuite,
)


class TestPlugin(PluginSuite):
    plugin = "core"


KERNELS = (
    "attention/portable",
    "attention_backward/portable",
    "cross_entropy/portable",
    "decode_attention/portable",
    "decode_matmul/portable",
    "grouped_matmul/portable",
    "rms_norm/portable",
    "rope/portable",
)


@pytest.mark.quick_one_in(6)
class TestKernels(KernelSuite):
    plugin = "core"
    keys = KERNELS
    dtypes = ("float32",)
    case_names = ("plain", "uneven")


@pytest.mark.slow
class TestKernelsOnEveryCase(KernelSuite):
    plugin = "core"
    keys = (
        *KERNELS,
        "attention/blockwise",
        "cross_entropy/reference",
        "decode_attention/reference",
        "decode_matmul/reference",
        "grouped_matmul/reference",
        "rms_norm/reference",
        "rope/reference",
    )


@pytest.mark.slow
class TestSampler(SamplerSuite):
    plugin = "core"


class TestMeshRules(MeshRuleSuite):
    plugin = "core"


class TestModifiers(ModifierSuite):
    plugin = "core"
    values = {
        "diloco": {"num_groups": 2},
        "evaluate": {"tasks": ("arithmetic",)},
        "from_run": {"path": "runs/base"},
        "kernels": {"pins": {"attention": "portable"}},
        "kv_cache": {"dtype": "int8"},
        "mesh_shape": {"mesh": {"data": -1}},
        "pretrained": {"path": "published"},
        "rename_weights": {"names": {"head.{a}": "top.{a}"}},
        "replace": {
            "target": "axcore.layers:FeedForward",
            "new": "axcore.layers:PlainFeedForward",
            "values": {"activation": "relu"},
        },
        "shard": {"params": {"embed": ("fsdp", "model")}},
        "update": {"changes": {"**.soft_cap": 30.0}},
    }

    repeats = (  # each adds an edit of initial weights, a task, or a factor
        "accumulate",
        "generate_samples",
        "evaluate",
        "extend_positions",
        "grow_vocabulary",
        "rename_weights",
        "stack_depth",
        "upcycle",
    )

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def teacher(cls, tmp_path_factory):
        """Writes what two modifiers read: a teacher, and the manifest of its tokens."""
        folder = tmp_path_factory.mktemp("teacher") / "published"
        model = llama2("toy")
        to_hugging_face(folder, model, model.build().init(0))
        cache = tmp_path_factory.mktemp("cache")
        (cache / MANIFEST).write_text('{"top_k": 4}')
        cls.values = {
            **cls.values,
            "distill": {"teacher": str(folder)},
            "distill_top_k": {"teacher_cache": str(cache)},
            "on_policy_distill": {"teacher": str(folder)},
        }

    def subject(self, folder):
        weights = HuggingFace.Config(path="other")
        windowed = update_config(super().subject(folder), {"**.core.window": (15, 0)})
        return evolve(windowed, mesh={"fsdp": -1}, init_from=weights)

    @pytest.fixture
    def subject_config(self, record, tmp_path):
        """The config to modify; what keeps weights that are not trained comes after adapters."""
        if record.name in ("on_policy_distill", "routing_replay"):
            return grpo_reverse()
        cfg = self.subject(tmp_path)
        comes_later = record.name == "quantized_base"
        return LoRA().apply(cfg, Hardware.parse(self.target)) if comes_later else cfg


@pytest.mark.quick_one_in(8)
class TestExperiments(ExperimentSuite):
    plugin = "core"


class TestDataSources(DataSourceSuite):
    plugin = "core"
    keys = (
        "array_record_files",
        "hugging_face_dataset",
        "json_lines",
        "tar_files",
        "text_files",
        "token_store",
    )

    def make(self, record, folder):
        if record.name == "text_files":
            for number in range(8):
                (folder / f"{number}.txt").write_text(f"text {number}")
            return TextFiles.Config(folder=str(folder))
        if record.name == "array_record_files":
            write_array_record(folder / "a.array_record", [b"a record"] * 8)
            return ArrayRecordFiles.Config(folder=str(folder))
        if record.name == "tar_files":
            (folder / "a.tar").write_bytes(tar_of([(f"{n}.txt", b"a sample") for n in range(8)]))
            return TarFiles.Config(folder=str(folder))
        if record.name == "hugging_face_dataset":
            save_dataset(folder, [["a row"] * 8])
            return HuggingFaceDataset.Config(folder=str(folder))
        (folder / "all.jsonl").write_text('{"text": "a line"}\n' * 8)
        lines = JsonLines.Config(folder=str(folder))
        if record.name == "json_lines":
            return lines
        store, tokenizer = folder / "store", ByteTokenizer.Config()
        build_store(lines.build(), tokenizer, store, validation_fraction=0.0)
        return StoredSource.Config(path=str(store))


class TestTokenizers(TokenizerSuite):
    plugin = "core"
    keys = ("bytes",)  # those that read files: tests/data


class TestObservers(ObserverSuite):
    plugin = "core"
    keys = ("heartbeat",)  # traces: tests/trainer/callbacks


class TestWriters(WriterSuite):
    plugin = "core"
    keys = ("json_lines",)  # boards: tests/trainer/callbacks/test_boards.py

    def read(self, record, folder):
        lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        return [
            (line.pop("step"), line.pop("split"), {name: float(line[name]) for name in line})
            for line in lines
        ]


class TestStorages(StorageSuite):
    plugin = "core"
    keys = ("file", "mirror")  # object stores: tests/checkpoint/test_object_stores.py

    def make(self, record, folder):
        fast = folder / "steps"
        return f"{fast}?copy={folder / 'copies'}" if record.name == "mirror" else str(fast)


class TestLaunchers(LauncherSuite):
    plugin = "core"

    def make(self, record):
        fields = (
            {"image": "me/axcore", "volume_claim": "runs"} if record.name == "kubernetes" else {}
        )
        return record.config.resolve()(**fields)

    def environments(self, record):
        for index in map(str, range(3)):
            yield {
                "slurm": {
                    "SLURM_JOB_ID": "7",
                    "SLURM_STEP_ID": "0",
                    "SLURM_STEP_NUM_TASKS": "3",
                    "SLURM_STEP_NODELIST": "node[1-3]",
                    "SLURM_PROCID": index,
                },
                "kubernetes": {
                    "AXCORE_COORDINATOR": "run-workers-0-0.run:29400",
                    "AXCORE_NUM_PROCESSES": "3",
                    "JOB_COMPLETION_INDEX": index,
                },
                "skypilot": {
                    "SKYPILOT_NUM_NODES": "3",
                    "SKYPILOT_NODE_RANK": index,
                    "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n10.0.0.3",
                },
            }[record.name]
