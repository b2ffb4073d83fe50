"""`axcore convert orbax:...` for the families and positions that this plugin brings."""

import pytest
from safetensors.numpy import load_file
from trainer_checkpoints import maxtext, published, save_maxtext, scanned

from axcore.errors import ConfigError
from axcore.runs import export_run, import_orbax

pytestmark = pytest.mark.filterwarnings("ignore:.*are not the model's but of training")
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


def assert_read(folder, hf, **options):
    run, _ = import_orbax(folder / "own", folder / "run", config=str(folder / "hf"), **options)
    export_run(run, folder / "back")
    found = load_file(folder / "back" / "model.safetensors")
    assert found.keys() == hf.keys()
    assert not [name for name in hf if found[name].tobytes() != hf[name].tobytes()]


@pytest.mark.parametrize("pairs", [False, True])
def test_queries_and_keys_of_qwen3_are_normalised_in_maxtext_too(tmp_path, pairs):
    hf = published(tmp_path / "hf", "qwen3")
    save_maxtext(tmp_path / "own", scanned(maxtext(hf, folds=False, pairs=pairs)))
    assert_read(tmp_path, hf, rotary_rows="pairs" if pairs else None)


def test_maxtext_rotates_pairs_where_positions_are_scaled_as_llama_3_1s(tmp_path):
    hf = published(tmp_path / "hf", rope_scaling=LLAMA3)
    save_maxtext(tmp_path / "own", scanned(maxtext(hf, pairs=True)))
    assert_read(tmp_path, hf)


def test_rows_are_asked_for_where_maxtext_rotates_either(tmp_path):
    hf = published(tmp_path / "hf", rope_scaling=YARN)
    save_maxtext(tmp_path / "own", scanned(maxtext(hf)))
    with pytest.raises(ConfigError, match="scaled as 'yarn', and MaxText may rotate halves or"):
        assert_read(tmp_path, hf)
    assert_read(tmp_path, hf, rotary_rows="halves")
