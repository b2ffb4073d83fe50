"""`axcore convert`: runs of pretrained checkpoints, and pretrained checkpoints of runs."""

import json
import shutil

import jax
import numpy as np
import pytest
import tokenizers
from commands import call
from gguf_tokenizers import BYTE_LEVEL, END, byte_level
from pieces import train_pieces
from quantized_folders import quantize_folder
from safetensors.numpy import load_file

from axcore.checkpoint import Checkpointer
from axcore.config import evolve, update_config
from axcore.data import tokenizer_in
from axcore.data.tokenizers.hugging_face_tokenizer import TOOL_TEMPLATE
from axcore.errors import AxcoreError, CheckpointError, ConfigError
from axcore.interop import HuggingFace, to_hugging_face
from axcore.layers import merge_adapters
from axcore.models import bert, llama2
from axcore.modifiers import LoRA
from axcore.plugins import Hardware
from axcore.runs import export_run, import_run, load_run, open_model
from axcore.runs.export import _tokenizer_files as tokenizer_files
from axcore.testing import small_experiment, trainer_on

EOS, BOS = "</s>", "<s>"


def tokenizer_json(path):
    """Writes a tokenizer of words that begins every text with `<s>`."""
    words = {BOS: 0, EOS: 1, "<unk>": 2, "one": 3, "two": 4, "three": 5}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens([BOS, EOS])
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, 0)]
    )
    made.save(str(path / "tokenizer.json"))
    names = {"bos_token": {"content": BOS, "lstrip": False}, "eos_token": EOS, "pad_token": None}
    (path / "tokenizer_config.json").write_text(json.dumps(names))


@pytest.fixture
def published(tmp_path):
    """A folder with a pretrained checkpoint of random weights, and a tokenizer."""
    cfg = llama2("toy")
    said = {"max_length": 64, "fields": {"eos_token_id": [1, 2]}}
    to_hugging_face(tmp_path / "hf", cfg, cfg.build().init(0), dtype="bfloat16", **said)
    tokenizer_json(tmp_path / "hf")
    return tmp_path / "hf"


def test_a_model_that_writes_no_text_is_not_said_to_generate(tmp_path):
    cfg = bert("toy")
    to_hugging_face(tmp_path / "bert", cfg, cfg.build().init(0))
    told = call("convert", f"hf:{tmp_path / 'bert'}", tmp_path / "run")
    assert told.rstrip().endswith(f"contains the model of {tmp_path / 'bert'}")


@pytest.mark.slow
def test_import_then_export_gives_every_tensor_back_byte_for_byte(published, tmp_path):
    assert "axcore generate" in call("convert", f"hf:{published}", tmp_path / "run")
    told = call("convert", tmp_path / "run", f"hf:{tmp_path / 'back'}", "--max-shard-size", "100KB")
    assert "a model of type llama" in told
    before = load_file(published / "model.safetensors")
    after = {}
    for file in (tmp_path / "back").glob("*.safetensors"):
        after |= load_file(file)
    assert before.keys() == after.keys()
    for name, array in before.items():
        assert (array.dtype, array.tobytes()) == (after[name].dtype, after[name].tobytes())
    for file in ("config.json", "generation_config.json", "tokenizer_config.json"):
        assert json.loads((tmp_path / "back" / file).read_text())
    again = json.loads((tmp_path / "back" / "config.json").read_text())
    first = json.loads((published / "config.json").read_text())
    assert again == {**first, "bos_token_id": 0, "eos_token_id": [1, 2]}
    files = ("tokenizer.json",)
    assert all((published / f).read_bytes() == (tmp_path / "back" / f).read_bytes() for f in files)


@pytest.mark.slow
def test_a_run_keeps_what_its_published_model_says_besides_weights(published, tmp_path):
    files = {"LICENSE": "MIT", "special_tokens_map.json": "{}"}
    files["generation_config.json"] = '{"temperature": 0.6, "eos_token_id": [1, 2]}'
    for name, text in files.items():
        (published / name).write_text(text)
    values = json.loads((published / "config.json").read_text())
    values |= {"model_type": "mistral", "sliding_window": None, "cap": 1.5}
    values = {n: v for n, v in values.items() if n not in ("attention_bias", "mlp_bias")}
    (published / "config.json").write_text(json.dumps(values))
    with pytest.raises(ConfigError, match=r"cap=1.5[\s\S]*--allow-unknown-fields"):
        call("convert", f"hf:{published}", tmp_path / "run")
    with pytest.warns(UserWarning, match="numbers might differ; they are ignored: cap=1.5"):
        call("convert", f"hf:{published}", tmp_path / "run", "--allow-unknown-fields")
    shutil.move(published, tmp_path / "elsewhere")
    assert load_run(tmp_path / "run").config.model.published.unknown_fields == ("cap",)
    with pytest.raises(ConfigError, match="the directory is a run"):
        open_model(tmp_path / "run", allow_unknown_fields=True)
    told = call("convert", tmp_path / "run", f"hf:{tmp_path / 'back'}")
    assert "a model of type mistral" in told
    assert {name for name in files if (tmp_path / "back" / name).is_file()} == files.keys()
    settings = json.loads((tmp_path / "back" / "generation_config.json").read_text())
    assert settings == {"temperature": 0.6, "bos_token_id": 0, "eos_token_id": [1, 2]}


@pytest.mark.slow
def test_a_run_that_began_with_a_published_model_is_exported_as_that(tmp_path):
    cfg = update_config(small_experiment(tmp_path / "texts"), {"mesh": {"fsdp": 1}})
    to_hugging_face(tmp_path / "hf", cfg.model, cfg.model.build().init(0), max_length=4096)
    values = json.loads((tmp_path / "hf" / "config.json").read_text())
    values = {n: v for n, v in values.items() if n not in ("attention_bias", "mlp_bias")}
    values |= {"model_type": "mistral", "sliding_window": None}
    (tmp_path / "hf" / "config.json").write_text(json.dumps(values))
    (tmp_path / "hf" / "LICENSE").write_text("MIT")
    cfg = evolve(cfg, init_from=HuggingFace.Config(path=str(tmp_path / "hf")))
    trainer_on(cfg, 1).run(tmp_path / "run", quiet=True)
    assert "mistral" in export_run(load_run(tmp_path / "run"), tmp_path / "back")
    said = json.loads((tmp_path / "back" / "config.json").read_text())
    assert said["max_position_embeddings"] == 4096 > cfg.data.seq_len
    assert (tmp_path / "back" / "LICENSE").read_text() == "MIT"
    shutil.rmtree(tmp_path / "hf")
    with pytest.warns(UserWarning, match="is not there: the export lacks its settings"):
        assert "llama" in export_run(load_run(tmp_path / "run"), tmp_path / "later")


@pytest.mark.slow
def test_an_imported_run_generates_with_its_own_tokenizer(published, tmp_path):
    run = import_run(published, tmp_path / "run", dtype="float32")
    tokenizer = run.trainer.data.tokenizer
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.end_ids) == (0, 1, (1, 2))
    assert tokenizer.encode_prompt("two one").tolist() == [0, 4, 3]
    assert run.generate("two one", max_tokens=3).num_tokens <= 3
    assert run.step == 0


@pytest.mark.slow
def test_a_trained_run_becomes_a_model_with_its_numbers(trained, tmp_path):
    directory, result = trained
    export_run(load_run(directory), tmp_path / "hf")
    tensors = load_file(tmp_path / "hf" / "model.safetensors")
    norm = np.asarray(result.state.model["decoder"]["norm"]["weight"])
    assert np.array_equal(tensors["model.norm.weight"], norm)
    back = import_run(tmp_path / "hf", tmp_path / "again")
    same = jax.tree.map(np.array_equal, back.state, jax.device_get(result.state.model))
    assert all(jax.tree.leaves(same))


@pytest.mark.slow
def test_a_run_of_adapters_becomes_adapters_or_a_model_with_them_merged(tmp_path):
    cfg = update_config(small_experiment(tmp_path / "texts"), {"mesh": {"fsdp": 1}})
    cfg = LoRA(rank=2).apply(cfg, Hardware.parse("cpu-1"))
    trainer_on(cfg, 1).run(tmp_path / "run", quiet=True)
    run = load_run(tmp_path / "run")
    arguments = ("convert", tmp_path / "run", f"hf:{tmp_path / 'adapters'}", "--dtype", "bfloat16")
    assert "as PEFT adapters of a model of type llama" in call(*arguments)
    factors = load_file(tmp_path / "adapters" / "adapter_model.safetensors")
    up = run.state["decoder"]["stack"]["layer"]["attention"]["q"]["lora_up"]["weight"][1]
    module = "base_model.model.model.layers.1.self_attn.q_proj"
    assert np.array_equal(factors[f"{module}.lora_B.weight"], np.asarray(up).T.astype("bfloat16"))
    call("convert", tmp_path / "run", f"hf:{tmp_path / 'merged'}", "--merged")
    merged = import_run(tmp_path / "merged", tmp_path / "again").state
    expected = merge_adapters(run.model, run.state)
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, merged, expected)))


@pytest.mark.slow
def test_adapters_that_are_not_all_that_was_trained_are_not_written_alone(trained, tmp_path):
    directory, _ = trained
    cfg = LoRA(rank=2).apply(load_run(directory).config, Hardware.parse("cpu-1"))
    cfg = update_config(cfg, {"learner.trainable": ("**.lora_up.**", "**.norm.**")})
    trainer_on(cfg, 1).run(tmp_path / "run", quiet=True)
    with pytest.raises(ConfigError, match=r"trained .*norm.*not its adapters alone"):
        export_run(load_run(tmp_path / "run"), tmp_path / "adapters")
    with pytest.raises(ConfigError, match="no adapters to merge"):
        export_run(load_run(directory), tmp_path / "merged", merged=True)


def test_a_damaged_model_makes_no_run(published, tmp_path):
    file = published / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(CheckpointError, match="truncated"):
        call("convert", f"hf:{published}", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_import_that_fails_while_it_is_saved_leaves_nothing(published, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError("no space left on device")

    monkeypatch.setattr(Checkpointer, "save", full)
    with pytest.raises(OSError, match="no space"):
        import_run(published, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_that_is_not_read_is_an_error(published, tmp_path):
    (published / "tokenizer.json").rename(published / "vocab.json")
    with pytest.raises(CheckpointError, match=r"tokenizer is vocab\.json"):
        import_run(published, tmp_path / "run")


def test_quantized_weights_are_opened_as_the_dtype_of_the_config(published, tmp_path):
    quantize_folder("awq", published, tmp_path / "plain")
    tokenizer_json(tmp_path / "plain")
    with pytest.warns(UserWarning, match=r"quantized \(AWQ\); they are dequantized to bfloat16"):
        opened = open_model(published)
    expected = import_run(tmp_path / "plain", tmp_path / "run", dtype="bfloat16")
    jax.tree.map(np.testing.assert_array_equal, opened.state, expected.state)


def test_merges_in_a_file_of_their_own_come_along_as_a_tokenizer_json(tmp_path):
    cfg, folder = update_config(llama2("toy"), {"vocab_size": 400}), tmp_path / "hf"
    to_hugging_face(folder, cfg, cfg.build().init(0))
    make, _ = BYTE_LEVEL["gpt-2"]
    made = byte_level(tmp_path / "tokenizer.json", make())
    model = made.content["model"]
    (folder / "vocab.json").write_text(json.dumps({**model["vocab"], END: made.eos_id}))
    (folder / "merges.txt").write_text("\n".join(" ".join(pair) for pair in model["merges"]))
    settings = {"tokenizer_class": "GPT2Tokenizer", "eos_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = import_run(folder, tmp_path / "run").trainer.data.tokenizer
    assert tokenizer.encode("It's 2024").tolist() == made.encode("It's 2024").tolist()
    assert str(tmp_path / "run") in tokenizer.config.path


def test_a_model_of_tokens_without_its_tokenizer_is_an_error(tmp_path):
    cfg = update_config(llama2("toy"), {"vocab_size": 512})
    to_hugging_face(tmp_path / "hf", cfg, cfg.build().init(0))
    with pytest.raises(CheckpointError, match="the folder has no tokenizer"):
        import_run(tmp_path / "hf", tmp_path / "run")


@pytest.mark.parametrize(
    ("file", "content"),
    [("added_tokens.json", {"<|im_end|>": 300}), ("generation_config.json", {"eos_token_id": 300})],
)
def test_tokens_beside_a_sentence_piece_model_are_not_passed_over(
    published, tmp_path, file, content
):
    (published / "tokenizer.json").unlink()
    train_pieces(published / "tokenizer.model")
    (published / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    (published / file).write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"tokenizer.model lacks tokens that files next to"):
        import_run(published, tmp_path / "run")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("hf:a", "hf:b"), "one names a pretrained checkpoint and the other a run"),
        (("a", "b"), "one names a pretrained checkpoint and the other a run"),
        (("hf:nowhere", "run"), "has no config.json"),
        (("run", "hf:b", "--max-shard-size", "much"), "--max-shard-size is 'much'"),
        (("run", "hf:b", "--allow-unknown-fields"), "is for the config.json of hf:FOLDER"),
    ],
)
def test_what_cannot_be_meant_is_an_error(arguments, message):
    with pytest.raises(AxcoreError, match=message):
        call("convert", *arguments)


def test_the_chat_template_for_tools_comes_along(tmp_path):
    (tmp_path / "additional_chat_templates").mkdir()
    tokenizer_json(tmp_path)
    (tmp_path / TOOL_TEMPLATE).write_text("{{ tools[0].name }}")
    files = tokenizer_files(tokenizer_in(tmp_path).build())
    cfg = llama2("toy")
    to_hugging_face(tmp_path / "made", cfg, cfg.build().init(0), files=files)
    assert tokenizer_in(tmp_path / "made").build().tool_template_source == "{{ tools[0].name }}"
