"""Adapters in PEFT's format: read back as they were written, every field used or refused."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_state import numpy_state
from rounding import assert_same_to_rounding
from safetensors.numpy import load_file, save_file

from axcore.config import replace_config, update_config, walk
from axcore.errors import CheckpointError, ConfigError
from axcore.inference.adapters import read_adapter
from axcore.interop import HuggingFace, read_adapters, to_hugging_face, to_peft
from axcore.interop.peft_settings import IRRELEVANT, MUST_BE, OFF, USED, read_settings
from axcore.layers import LoRALinear, without_lora
from axcore.models import TiedHead, UntiedHead, llama2, mixtral
from axcore.modifiers import LoRA
from axcore.module import functional
from axcore.plugins import Hardware
from axcore.runs import export_run, import_run
from axcore.serving import open_adapters

CPU = Hardware.parse("cpu-1")
ADAPTED = LoRA(rank=4, alpha=6.0).apply(llama2("toy"), CPU)
TOKENS = jnp.arange(24, dtype=jnp.int32).reshape(2, 12)
FILES = ("adapter_model.safetensors", "adapter_config.json")


@pytest.fixture(scope="module")
def state():
    return jax.tree.map(jnp.asarray, numpy_state(ADAPTED.build().param_specs()))


@pytest.fixture
def folders(tmp_path, state):
    """A pretrained checkpoint, and adapters of it."""
    plain, base = without_lora(ADAPTED), without_adapters(state)
    to_hugging_face(tmp_path / "base", plain, base)
    to_peft(tmp_path / "adapters", ADAPTED, state, base=str(tmp_path / "base"))
    return tmp_path


def without_adapters(tree):
    if not isinstance(tree, dict):
        return tree
    return (
        without_adapters(tree["base"])
        if "base" in tree
        else {name: without_adapters(one) for name, one in tree.items()}
    )


def begun(folders, cfg=ADAPTED):
    source = {"path": str(folders / "base"), "adapters": str(folders / "adapters")}
    plan = HuggingFace.Config(**source).build().plan(cfg)
    return plan.read(jax.eval_shape(lambda: cfg.build().init(0))), plan.table()


def same(one, other):
    return all(jax.tree.leaves(jax.tree.map(np.array_equal, one, other)))


def changed(folders, **values):
    file = folders / "adapters" / FILES[1]
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_what_was_written_is_read(folders, state):
    found = read_adapters(folders / "adapters", llama2("toy"))
    assert found.config == ADAPTED
    read, table = begun(folders)
    assert same(read, state)
    assert "randomly initialized" not in table
    assert "model.layers.0.self_attn.q_proj.lora_A.weight and 1 more" in table


@pytest.mark.slow
def test_a_run_of_adapters_is_written_as_the_same_bytes(folders):
    run = import_run(folders / "adapters", folders / "run")
    assert run.config.learner.trainable == ("**.lora_down.**", "**.lora_up.**")
    export_run(run, folders / "again")
    for file in FILES:
        assert (folders / "again" / file).read_bytes() == (folders / "adapters" / file).read_bytes()


def test_modules_without_tensors_are_not_corrected(folders, state):
    file = folders / "adapters" / FILES[0]
    tensors = {n: one for n, one in load_file(file).items() if ".q_proj." in n or ".v_proj." in n}
    save_file(tensors, file)
    changed(folders, target_modules=["q_proj", "v_proj"])
    cfg = read_adapters(folders / "adapters", llama2("toy")).config
    read, _ = begun(folders, cfg)
    adapters = dict(state["decoder"]["stack"]["layer"]["attention"])
    for name, part in read["decoder"]["stack"]["layer"]["attention"].items():
        if name in ("q", "v"):
            assert same(part, adapters[name])
        elif "lora_up" in part:
            assert not np.any(part["lora_up"]["weight"])
    assert "lora_up" not in read["decoder"]["stack"]["layer"]["feed_forward"]["up"]


@pytest.mark.slow
def test_rank_stabilised_adapters_have_another_scale(folders, state):
    changed(folders, use_rslora=True)
    cfg = read_adapters(folders / "adapters", llama2("toy")).config
    scaled = LoRA(rank=4, alpha=6.0, use_rslora=True).apply(llama2("toy"), CPU)
    assert cfg == scaled
    logits, _ = functional(cfg.build(), begun(folders, cfg)[0], TOKENS, method="logits")
    doubled = update_config(ADAPTED, {"**.alpha": 12.0})
    expected, _ = functional(doubled.build(), state, TOKENS, method="logits")
    assert_same_to_rounding(logits, expected)
    with pytest.raises(ConfigError, match=r"(?s)- .*use_rslora: True"):
        begun(folders, ADAPTED)


def wider(folders, names, rank):
    """Writes adapters of some modules again, of another rank."""
    file = folders / "adapters" / FILES[0]
    tensors = load_file(file)
    for name, array in tensors.items():
        if any(f".{one}." in name for one in names):
            shape = [rank if size == 4 else size for size in array.shape]
            tensors[name] = np.resize(array, shape)
    save_file(tensors, file)
    return tensors


def test_modules_of_another_rank_and_alpha_have_their_own(folders):
    tensors = wider(folders, ("gate_proj", "up_proj", "down_proj"), 2)
    ranks = {r"layers\.\d+\.mlp\.\w+": 2}
    changed(folders, rank_pattern=ranks, alpha_pattern={"down_proj": 3, "mlp.(gate|up)_proj": 3})
    cfg = read_adapters(folders / "adapters", llama2("toy")).config
    sizes = {(one.rank, one.alpha) for _, one in walk(cfg) if isinstance(one, LoRALinear.Config)}
    assert sizes == {(4, 6.0), (2, 3.0)}
    layer = begun(folders, cfg)[0]["decoder"]["stack"]["layer"]
    down = tensors["base_model.model.model.layers.1.mlp.down_proj.lora_A.weight"]
    assert np.array_equal(layer["feed_forward"]["down"]["lora_down"]["weight"][1], down.T)


def test_modules_that_share_a_layer_here_have_one_rank(folders):
    wider(folders, ("k_proj",), 2)
    changed(folders, rank_pattern={"k_proj": 2})
    with pytest.raises(ConfigError, match=r"(?s)several ranks.*k_proj: 2, 6.*merge the adapters"):
        begun(folders)


def test_modules_that_are_excluded_need_no_tensors(folders):
    file = folders / "adapters" / FILES[0]
    tensors = load_file(file)
    save_file({n: one for n, one in tensors.items() if ".1.mlp.down_proj" not in n}, file)
    with pytest.raises(CheckpointError, match=r"1\.mlp\.down_proj is named and has no tensors"):
        begun(folders)
    for excluded in (["layers.1.mlp.down_proj"], r".*\.1\.mlp\.down_proj"):
        changed(folders, exclude_modules=excluded, fan_in_fan_out=True)
        assert "randomly initialized" in begun(folders)[1]


@pytest.mark.parametrize("name", [*sorted(OFF), *sorted(MUST_BE)])
def test_fields_that_change_numbers_are_refused_by_name(folders, name):
    changed(folders, **{name: ["other"]})
    with pytest.raises(ConfigError, match=rf"(?s)1 fields .*{name} is \['other'\]"):
        read_settings(folders / "adapters")


def test_fields_are_of_one_kind_and_unknown_ones_refused(folders):
    kinds = (USED - MUST_BE.keys(), IRRELEVANT, OFF, MUST_BE.keys())
    assert len(set().union(*kinds)) == sum(map(len, kinds))
    changed(folders, **dict.fromkeys(IRRELEVANT, "other"), use_nothing=1)
    with pytest.raises(ConfigError, match=r"1 fields .*\nuse_nothing is 1, which is not known"):
        read_settings(folders / "adapters")


def test_tensors_must_be_those_that_the_settings_name(folders):
    changed(folders, target_modules=["q_proj", "r_proj"])
    with pytest.raises(CheckpointError, match=r"(?s)k_proj has tensors and is not named"):
        begun(folders)
    last = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    changed(folders, target_modules=[*last, "c_attn"])
    with pytest.warns(UserWarning, match="names c_attn, which the model does not have"):
        read_adapters(folders / "adapters", llama2("toy"))
    changed(folders, target_modules=r".*_proj")
    begun(folders)
    changed(folders, target_modules=r".*\.r_proj")
    with pytest.raises(CheckpointError, match="r_proj is named and has no tensors"):
        begun(folders)


def test_a_factor_without_the_other_one_is_an_error(folders):
    file = folders / "adapters" / FILES[0]
    tensors = load_file(file)
    lost = min(name for name in tensors if ".lora_B." in name)
    save_file({name: array for name, array in tensors.items() if name != lost}, file)
    with pytest.raises(CheckpointError, match="1 factors are missing") as e:
        begun(folders)
    assert lost in str(e.value)


def test_tensors_of_something_else_are_named(folders):
    file = folders / "adapters" / FILES[0]
    tensors = load_file(file)
    save_file(
        {**tensors, "base_model.model.lm_head.modules_to_save.weight": tensors[min(tensors)]}, file
    )
    with pytest.raises(
        CheckpointError, match=r"do not fit the model.*\n.*lm_head\.modules_to_save"
    ):
        begun(folders)
    (folders / "adapters" / FILES[0]).unlink()
    with pytest.raises(CheckpointError, match=r"the folder has no adapter_model\.safetensors"):
        begun(folders)


def with_tensors(folders, tensors, **values):
    """Adds tensors to a folder of adapters, by the base's names."""
    file = folders / "adapters" / FILES[0]
    named = {f"base_model.model.{name}": array for name, array in tensors.items()}
    save_file({**load_file(file), **named}, file)
    changed(folders, **values)


def drawn(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


TABLE = (264, 64)


def test_saved_modules_are_read_in_the_place_of_the_base(folders, state):
    head, norm = drawn(*TABLE), drawn(64)
    saved = {"lm_head.weight": head, "model.layers.1.input_layernorm.weight": norm}
    with_tensors(folders, saved, modules_to_save=["lm_head", "layers.1.input_layernorm"])
    found = read_adapters(folders / "adapters", llama2("toy"))
    leaves = {"head.weight", "decoder.stack.layer.attention_residual.norm.weight"}
    assert set(found.trained) == {"**.lora_down.**", "**.lora_up.**", *leaves}
    read, table = begun(folders)
    assert np.array_equal(read["head"]["weight"], head)
    old, new = (
        one["decoder"]["stack"]["layer"]["attention_residual"]["norm"]["weight"]
        for one in (state, read)
    )
    assert np.array_equal(new, np.stack([old[0], norm]))
    assert "lm_head.weight (adapter_model.safetensors)" in table


def test_what_changes_the_base_is_not_served_as_adapters_alone(folders):
    with_tensors(folders, {"lm_head.weight": drawn(*TABLE)}, modules_to_save=["lm_head"])
    with pytest.raises(ConfigError, match=r"(?s)changes weights .*\nlm_head\.weight.*axcore serve"):
        read_adapter(folders / "adapters", llama2("toy"))


@pytest.mark.slow
def test_a_run_of_a_changed_base_is_written_merged(folders):
    with_tensors(folders, {"lm_head.weight": drawn(*TABLE)}, modules_to_save=["lm_head"])
    run = import_run(folders / "adapters", folders / "run")
    assert "head.weight" in run.config.learner.trainable
    with pytest.raises(ConfigError, match=r"(?s)lm_head\.weight.*--merged"):
        export_run(run, folders / "again")
    with pytest.raises(ConfigError, match=r"(?s)lm_head\.weight.*axcore serve"):
        open_adapters({"it": folders / "run"}, llama2("toy"), trust_code=False)
    export_run(run, folders / "merged", merged=True)
    merged = load_file(folders / "merged" / "model.safetensors")
    assert np.array_equal(merged["lm_head.weight"], drawn(*TABLE))


def test_a_saved_module_without_tensors_is_an_error(folders):
    changed(folders, modules_to_save=["lm_head", "score"])
    with pytest.raises(CheckpointError, match=r"modules without tensors:\nlm_head\nscore"):
        begun(folders)
    with_tensors(folders, {"lm_head.weight": drawn(9, 64)}, modules_to_save=["lm_head"])
    with pytest.raises(CheckpointError, match=r"lm_head.weight has shape \[9, 64\]; the model's"):
        begun(folders)


def test_trained_biases_are_read(tmp_path):
    cfg = update_config(ADAPTED, {"**.attention.*.base.has_bias": True})
    state = jax.tree.map(jnp.asarray, numpy_state(cfg.build().param_specs()))
    to_hugging_face(tmp_path / "base", without_lora(cfg), without_adapters(state))
    to_peft(tmp_path / "adapters", cfg, state, base=str(tmp_path / "base"))
    bias = drawn(64)
    with_tensors(tmp_path, {"model.layers.1.self_attn.q_proj.base_layer.bias": bias}, bias="all")
    read = begun(tmp_path, cfg)[0]["decoder"]["stack"]["layer"]["attention"]
    assert np.array_equal(np.ravel(read["q"]["base"]["bias"][1]), bias)


@pytest.mark.parametrize("name", ["model.embed_tokens", "lm_head"])
def test_adapters_of_tables_are_added_to_them(folders, state, name):
    is_head = name == "lm_head"
    down, up = drawn(2, TABLE[is_head]), drawn(TABLE[not is_head], 2)[:, ::-1].copy()
    ends = (
        ("lora_A.weight", "lora_B.weight") if is_head else ("lora_embedding_A", "lora_embedding_B")
    )
    with_tensors(
        folders,
        {f"{name}.{ends[0]}": down, f"{name}.{ends[1]}": up},
        target_modules=r".*(_proj|embed_tokens|lm_head)",
        alpha_pattern={name: 3},
        rank_pattern={name: 2},
    )
    with pytest.warns(UserWarning, match=rf"no adapter layer here adapts {name}"):
        read, _ = begun(folders)
    correction = 3 / 2 * (up @ down)
    old, new = (one["head"] if is_head else one["decoder"]["embedding"] for one in (state, read))
    assert_same_to_rounding(
        new["weight"], old["weight"] + (correction if is_head else correction.T)
    )


def test_adapters_of_experts_are_added_to_them(tmp_path):
    cfg = LoRA(rank=4, targets=("**.attention",)).apply(mixtral("toy"), CPU)
    state = jax.tree.map(jnp.asarray, numpy_state(cfg.build().param_specs()))
    to_hugging_face(tmp_path / "base", without_lora(cfg), without_adapters(state))
    to_peft(tmp_path / "adapters", cfg, state, base=str(tmp_path / "base"))
    name, down, up = "model.layers.1.block_sparse_moe.experts.5.w1", drawn(4, 64), drawn(96, 4)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "w1"]
    factors = {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}
    with_tensors(tmp_path, factors, target_modules=targets)
    with pytest.warns(UserWarning, match=r"no adapter layer here adapts .*experts\.5\.w1"):
        read, _ = begun(tmp_path, cfg)
    old, new = (one["decoder"]["stack"]["layer"]["feed_forward"] for one in (state, read))
    changes = jax.tree.leaves(jax.tree.map(lambda a, b: np.abs(a - b).max(), old, new))
    assert sum(one > 0 for one in changes) == 1
    gate = (
        new["experts"]["expert"]["gate"]["weight"] - old["experts"]["expert"]["gate"]["weight"]
    )[1, 5]
    assert_same_to_rounding(gate, 16.0 / 4 * (up @ down).T)


def test_tied_tables_change_together(tmp_path, state):
    cfg = replace_config(llama2("toy"), UntiedHead, TiedHead.Config())
    tied = {"decoder": without_adapters(state)["decoder"]}
    to_hugging_face(tmp_path / "base", cfg, tied)
    to_peft(
        tmp_path / "adapters",
        replace_config(ADAPTED, UntiedHead, TiedHead.Config()),
        {"decoder": state["decoder"]},
        base=str(tmp_path / "base"),
    )
    table = drawn(*TABLE)
    with_tensors(tmp_path, {"model.embed_tokens.weight": table}, modules_to_save=["embed_tokens"])
    with pytest.raises(ConfigError, match=r"(?s)change model.embed_tokens.weight, .*one tensor"):
        read_adapters(tmp_path / "adapters", cfg)
    with_tensors(tmp_path, {"lm_head.weight": table}, ensure_weight_tying=True)
    assert read_adapters(tmp_path / "adapters", cfg).replaced.names == ["model.embed_tokens.weight"]


def test_adapters_of_another_model_are_refused(folders):
    with pytest.raises(CheckpointError, match=r"(?s)do not fit the model.*mlp\.down"):
        read_adapters(folders / "adapters", mixtral("toy"))
    with pytest.raises(ConfigError, match=r"adapters differ from the folder.*\n- LoRALinear"):
        begun(folders, llama2("toy"))
    wide = update_config(llama2("toy"), {"**.hidden_dim": 80})
    cfg = read_adapters(folders / "adapters", wide).arrays
    with pytest.raises(
        CheckpointError, match=r"down_proj\.lora_A\.weight has shape \[4, \d+\]; the"
    ):
        cfg.check(cfg.shapes)


@pytest.mark.slow
def test_a_base_is_a_folder_and_dtypes_are_one_unless_named(folders):
    changed(folders, base_model_name_or_path="some/model")
    with pytest.raises(CheckpointError, match="are of some/model, not a folder"):
        import_run(folders / "adapters", folders / "run")
    with pytest.raises(CheckpointError, match=r"contains no adapters that .* could be the base of"):
        import_run(folders / "base", folders / "run", base="other")
    file = folders / "adapters" / FILES[0]
    save_file({n: one.astype(np.float64) for n, one in load_file(file).items()}, file)
    with pytest.raises(CheckpointError, match="stored as float64, and are kept as float32"):
        import_run(folders / "adapters", folders / "run", base=folders / "base")
    run = import_run(folders / "adapters", folders / "run", base=folders / "base", dtype="float32")
    assert any(isinstance(node, LoRALinear.Config) for _, node in walk(run.config))
