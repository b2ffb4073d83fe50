"""`--draft`: a served model whose tokens another one drafts."""

import gc
import weakref

import jax
import pytest
from click.testing import CliRunner
from model_server import serving_model

import axcore as ax
from axcore.cli.main import group
from axcore.config import evolve
from axcore.errors import CheckpointError, ConfigError
from axcore.inference import DraftModel, EngineConfig, Sampling
from axcore.runs import load_run, open_model
from axcore.serving import ServerConfig, start_engine
from axcore.testing import small_experiment, trainer_on

GUESSED = EngineConfig(
    max_num_seqs=2, max_length=32, max_num_batched_tokens=20, speculation=DraftModel(num_tokens=3)
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guessed")
    cfg = ax.update_config(small_experiment(folder / "texts"), {"mesh": {"fsdp": 1}})
    trainer_on(cfg, 1).run(folder / "base", quiet=True)
    return folder / "base"


@pytest.mark.slow
def test_answers_are_those_without_guesses_and_no_request_compiles(run):
    opened = open_model(run)
    served = start_engine(opened, ServerConfig(engine=GUESSED), draft=open_model(run))
    with served.engine, serving_model(served) as server:
        client = server.client()
        asked = {"prompt": "The ", "max_tokens": 12, "temperature": 0}
        found = client.completions.create(model="base", **asked).choices[0].text
        stats = served.engine.stats()
    assert (
        found
        == load_run(run).generate("The ", max_tokens=12, sampling=Sampling(temperature=0)).text
    )
    assert 0 < stats.num_draft_tokens == stats.num_accepted_draft_tokens
    assert stats.compilations_after_warm_up == 0


@pytest.mark.slow
def test_weights_that_the_engine_converts_are_not_kept_as_they_were_read(run):
    opened, draft = open_model(run), open_model(run)
    states = (opened.state, draft.state)
    layers = [weakref.ref(x) for state in states for x in jax.tree.leaves(state) if x.ndim == 3]
    cfg = ServerConfig(engine=evolve(GUESSED, weights="int8"))
    with start_engine(opened, cfg, draft=draft).engine:
        watched = opened.run  # which newer weights are read from, as long as the server runs
        del opened, draft, states
        gc.collect()
        assert layers
        assert not any(layer() is not None for layer in layers)
        assert watched.directory == run


@pytest.mark.slow
def test_a_draft_without_guesses_is_refused(run):
    with pytest.raises(ConfigError, match=r"there is a draft model, and speculation is None"):
        start_engine(open_model(run), ServerConfig(), draft=open_model(run))


def test_a_draft_that_is_no_model_is_an_error(run):
    words = ["serve", str(run), "--port", "0", "--draft", str(run / "none")]
    result = CliRunner().invoke(group, words)
    assert isinstance(result.exception, CheckpointError), result.output
    assert "there is no such directory" in str(result.exception)
