"""`--adapter`: each request is answered by the adapter that its model is called, or refused."""

import asyncio
import json

import openai
import pytest
from model_server import serving_model

import axcore as ax
from axcore.errors import CheckpointError, ConfigError
from axcore.inference import EngineConfig, Sampling
from axcore.inference.adapters import read_adapter
from axcore.modifiers import LoRA
from axcore.plugins import Hardware
from axcore.runs import FromRun, export_run, load_run, open_model
from axcore.serving import (
    AdapterFolder,
    ServerConfig,
    named_folders,
    open_adapters,
    start_engine,
)
from axcore.testing import small_experiment, trainer_on

CPU = Hardware.parse("cpu-1")
SMALL = EngineConfig(
    max_num_seqs=2, max_length=32, max_num_batched_tokens=20, num_decode_steps=1, adapter_rank=4
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run, one of adapters of it, one of adapters of another model, and how to make more."""
    folder = tmp_path_factory.mktemp("adapters")
    cfg = ax.update_config(small_experiment(folder / "texts"), {"mesh": {"fsdp": 1}})

    def train(name, cfg):
        trainer_on(cfg, 1).run(folder / name, quiet=True)
        return folder / name

    def corrected(name, cfg, base, targets=("**.attention",)):
        cfg = FromRun(path=str(base)).apply(cfg, CPU)
        cfg = LoRA(rank=4, alpha=64.0, targets=targets).apply(cfg, CPU)
        return train(name, ax.update_config(cfg, {"**.peak": 0.1, "max_steps": 4}))

    base = train("base", cfg)
    wide = ax.update_config(cfg, {"**.hidden_dim": 48})
    return {
        "folder": folder,
        "base": base,
        "lora": corrected("lora", cfg, base),
        "other": corrected("other", wide, train("wide", wide)),
    }


@pytest.fixture(scope="module")
def server(runs):
    opened = open_model(runs["base"])
    adapters = open_adapters(named_folders([f"poems={runs['lora']}"]), opened.model.config)
    engine = ax.evolve(SMALL, num_adapters=2)
    root = AdapterFolder(runs["folder"], opened.model.config)
    served = start_engine(
        opened, ServerConfig(engine=engine), adapters=adapters, adapter_folder=root
    )
    with served.engine, serving_model(served) as made:
        yield made


@pytest.mark.slow
def test_each_request_is_answered_by_the_adapter_that_it_names(runs, server):
    client = server.client()
    assert [one.id for one in client.models.list()] == ["base", "poems"]
    asked = {"prompt": "The ", "max_tokens": 8, "temperature": 0}
    found = {
        name: client.completions.create(model=name, **asked).choices[0].text
        for name in ("base", "poems")
    }
    greedy = {"max_tokens": 8, "sampling": Sampling(temperature=0)}
    for name, run in (("base", "base"), ("poems", "lora")):
        assert found[name] == load_run(runs[run]).generate("The ", **greedy).text
    assert found["base"] != found["poems"]
    with pytest.raises(openai.NotFoundError, match="this server has 'base', 'poems'") as raised:
        client.completions.create(model="prose", **asked)
    assert (raised.value.param, raised.value.code) == ("model", "model_not_found")


@pytest.mark.slow
def test_clients_add_adapters_and_remove_them_while_others_are_answered(runs, server):
    client, asked = server.client(), {"prompt": "The ", "max_tokens": 8, "temperature": 0}
    named = client.completions.create(model="poems", **asked).choices[0].text
    added = server.send("v1/load_lora_adapter", {"lora_name": "more", "lora_path": "lora"})
    assert added.json == {"adapter": "more", "adapters": ["poems", "more"]}
    assert client.completions.create(model="more", **asked).choices[0].text == named
    again = server.send("v1/load_lora_adapter", {"lora_name": "more", "lora_path": "lora"})
    assert (again.status, again.json["error"]["code"]) == (400, "adapter_exists")
    assert server.send("v1/unload_lora_adapter", {"lora_name": "more"}).json["adapters"] == [
        "poems"
    ]
    with pytest.raises(openai.NotFoundError, match="this server has 'base', 'poems'"):
        client.completions.create(model="more", **asked)
    gone = server.send("v1/unload_lora_adapter", {"lora_name": "more"})
    assert (gone.status, gone.json["error"]["code"]) == (404, "adapter_not_found")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "path", "match"),
    [
        ("base", "lora", "the model's own name"),
        ("x", "../..", "no folder '../..' below"),
        ("x", "/etc", "no folder '/etc' below"),
        ("x", "a" * 300, "no folder 'aaaa"),
        ("x", "a\0b", "no folder 'a"),
        ("x", "base", "trained no adapters but a full model"),
        ("x", "other", "adapters are of another model"),
        ("", "lora", "lora_name is missing"),
    ],
)
def test_an_adapter_that_cannot_be_added_changes_nothing(server, name, path, match):
    found = server.send("v1/load_lora_adapter", {"lora_name": name, "lora_path": path})
    assert found.status == 400
    assert match in found.json["error"]["message"]
    assert server.send("v1/models").json["data"][-1]["id"] == "poems"


@pytest.mark.slow
def test_a_client_that_leaves_takes_no_slot(runs, server):
    """The adapter that was being added is there for others, and can be removed."""
    served = server.served

    async def left():
        adding = asyncio.create_task(
            served.adapter_folder.add(served, "left", "lora", replaces=False)
        )
        await asyncio.sleep(0.01)
        adding.cancel()
        while "left" not in served.adapters:
            await asyncio.sleep(0.01)
        await served.adapter_folder.remove(served, "left")

    asyncio.run(asyncio.wait_for(left(), 60))
    assert served.adapters == ("poems",)


@pytest.mark.slow
def test_settings_that_peft_does_not_write_are_an_error(runs, tmp_path):
    export_run(load_run(runs["lora"]), tmp_path / "peft")
    path = tmp_path / "peft" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "alpha_pattern": {"(": 8}}))
    with pytest.raises(CheckpointError, match="not as PEFT writes them"):
        open_adapters({"a": tmp_path / "peft"}, load_run(runs["base"]).config.model)


@pytest.mark.slow
def test_a_folder_of_pefts_is_the_run_that_it_was_written_from(runs, tmp_path):
    export_run(load_run(runs["lora"]), tmp_path / "peft")
    cfg = load_run(runs["base"]).config.model
    both = {"run": runs["lora"], "peft": tmp_path / "peft"}
    own, written = open_adapters(both, cfg).values()
    assert own.rank == written.rank == 4
    assert own.arrays.keys() == written.arrays.keys()
    assert all((own.arrays[name] == written.arrays[name]).all() for name in own.arrays)
    assert read_adapter(tmp_path / "peft", cfg).cfg == written.cfg


@pytest.mark.slow
def test_what_does_not_fit_is_an_error_before_anything_is_compiled(runs):
    opened = open_model(runs["base"])
    cfg = opened.model.config
    with pytest.raises(ConfigError, match=r"adapters are of another model(.|\n)*hidden_dim"):
        open_adapters({"a": runs["other"]}, cfg)
    with pytest.raises(ConfigError, match="trained no adapters but a full model"):
        open_adapters({"a": runs["base"]}, cfg)
    with pytest.raises(CheckpointError, match="not a run directory"):
        open_adapters({"a": runs["folder"]}, cfg)
    own = open_model(runs["lora"]).model.config
    for refused in (
        lambda: open_adapters({"a": runs["lora"]}, own),
        lambda: AdapterFolder(runs["folder"], own),
    ):
        with pytest.raises(ConfigError, match="the model has adapters itself"):
            refused()
    adapters = open_adapters({"a": runs["lora"]}, cfg)
    narrow = ServerConfig(engine=ax.evolve(SMALL, adapter_rank=2))
    with pytest.raises(ConfigError, match=r"'a' has rank 4, and there is room for 2(.|\n)*rank=4"):
        start_engine(opened, narrow, adapters=adapters)
    with pytest.raises(ConfigError, match="the model and an adapter have the name 'a'"):
        start_engine(opened, narrow, names=("a",), adapters=adapters)


@pytest.mark.parametrize("text", ["poems", "=runs/poems", "poems="])
def test_an_adapter_has_a_name_and_a_directory(text):
    with pytest.raises(ConfigError, match="names no adapter and its directory"):
        named_folders([text])


def test_names_and_directories_of_adapters_are_checked_first(tmp_path):
    with pytest.raises(ConfigError, match="two adapters have the name 'a'"):
        named_folders([f"a={tmp_path}", f"a={tmp_path}"])
    with pytest.raises(CheckpointError, match="there is no such directory"):
        named_folders(["a=nowhere"])
