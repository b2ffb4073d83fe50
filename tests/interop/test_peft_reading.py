"""Adapters in PEFT's format: read back as they were written, every field used or refused."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_state import numpy_state
from rounding import assert_same_to_rounding
from safetensors.numpy import load_file, save_file

from axcore.config import update_config, walk
from axcore.errors import CheckpointError, ConfigError
from axcore.interop import HuggingFace, read_corrections, to_hugging_face, to_peft
from axcore.interop.peft_reading import IRRELEVANT, MUST_BE, OFF, USED, read_settings
from axcore.layers import LoRALinear, without_lora
from axcore.models import llama2, mixtral
from axcore.modifiers import LoRA
from axcore.module import functional
from axcore.plugins import Hardware
from axcore.runs import export_run, import_run

CPU = Hardware.parse("cpu-1")
ADAPTED = LoRA(rank=4, alpha=6.0).apply(llama2("toy"), CPU)
TOKENS = jnp.arange(24, dtype=jnp.int32).reshape(2, 12)
FILES = ("adapter_model.safetensors", "adapter_config.json")


@pytest.fixture(scope="module")
def state():
    return jax.tree.map(jnp.asarray, numpy_state(ADAPTED.build().param_specs()))


@pytest.fixture
def folders(tmp_path, state):
    """A published model, and adapters of it."""
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
    found = read_corrections(folders / "adapters", llama2("toy"))
    assert found.config == ADAPTED
    read, table = begun(folders)
    assert same(read, state)
    assert "as in a new model" not in table
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
    cfg = read_corrections(folders / "adapters", llama2("toy")).config
    read, _ = begun(folders, cfg)
    adapters = dict(state["decoder"]["stack"]["layer"]["attention"])
    for name, part in read["decoder"]["stack"]["layer"]["attention"].items():
        if name in ("q", "v"):
            assert same(part, adapters[name])
        elif "lora_up" in part:
            assert not np.any(part["lora_up"]["weight"])
    assert "lora_up" not in read["decoder"]["stack"]["layer"]["feed_forward"]["up"]


def test_rank_stabilised_adapters_have_another_scale(folders, state):
    changed(folders, use_rslora=True)
    cfg = read_corrections(folders / "adapters", llama2("toy")).config
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
    cfg = read_corrections(folders / "adapters", llama2("toy")).config
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
        assert "as in a new model" in begun(folders)[1]


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
        read_corrections(folders / "adapters", llama2("toy"))
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
    with pytest.raises(CheckpointError, match=r"no factors of a linear layer:\n.*modules_to_save"):
        begun(folders)
    (folders / "adapters" / FILES[0]).unlink()
    with pytest.raises(CheckpointError, match=r"the folder has no adapter_model\.safetensors"):
        begun(folders)


def test_adapters_of_another_model_are_refused(folders):
    with pytest.raises(CheckpointError, match=r"(?s)tensors are not of a linear layer.*mlp\.down"):
        read_corrections(folders / "adapters", mixtral("toy"))
    with pytest.raises(ConfigError, match=r"corrects its layers in another way .*\n- LoRALinear"):
        begun(folders, llama2("toy"))
    wide = update_config(llama2("toy"), {"**.hidden_dim": 80})
    cfg = read_corrections(folders / "adapters", wide).arrays
    with pytest.raises(
        CheckpointError, match=r"down_proj\.lora_A\.weight has shape \[4, \d+\]; the"
    ):
        cfg.check(cfg.shapes)


def test_a_base_is_a_folder_and_dtypes_are_one_unless_named(folders):
    changed(folders, base_model_name_or_path="some/model")
    with pytest.raises(CheckpointError, match="are of some/model, which is no folder"):
        import_run(folders / "adapters", folders / "run")
    with pytest.raises(CheckpointError, match=r"holds no adapters that .* could be the base of"):
        import_run(folders / "base", folders / "run", base="other")
    file = folders / "adapters" / FILES[0]
    save_file({n: one.astype(np.float64) for n, one in load_file(file).items()}, file)
    with pytest.raises(CheckpointError, match="stored as float64, and are kept as float32"):
        import_run(folders / "adapters", folders / "run", base=folders / "base")
    run = import_run(folders / "adapters", folders / "run", base=folders / "base", dtype="float32")
    assert any(isinstance(node, LoRALinear.Config) for _, node in walk(run.config))
