"""`train`, `generate`, `eval`: what a user types, sees, and gets wrong."""

import json
import subprocess
import sys

import pytest
from quick_flags import quick_environment

from axcore.cli.main import main
from axcore.cli.options import escape_control_characters
from axcore.runs import export_run, load_run

TINY = [
    f"--set={override}"
    for override in (
        "model.dim=32",
        "model.decoder.stack.num_layers=1",
        "**.num_heads=2",
        "**.num_kv_heads=1",
        "**.hidden_dim=48",
        "data.seq_len=32",
        "data.batch_size=16",
        "data.validation_batches=1",
        "learner.schedule.warmup_steps=2",
        "max_steps=6",
        "logging.every_steps=2",
        "eval_every_steps=3",
    )
]


def axcore(*arguments):
    """Runs `axcore` in a fresh interpreter with one device, as a user would."""
    return subprocess.run(
        [sys.executable, "-m", "axcore", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=quick_environment(),
    )


def run(*arguments):
    """Runs `axcore` in this process and returns its exit code."""
    try:
        main(list(arguments))
    except SystemExit as end:
        return end.code or 0
    return 0


def contents(directory):
    """Returns every file of a run but its lock, which names the last process that took it."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {path: path.read_bytes() for path in files if path.name != "axcore.lock"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run, and what the command printed."""
    directory = tmp_path_factory.mktemp("runs") / "tiny"
    done = axcore("train", "tiny", "--dir", str(directory), *TINY)
    assert done.returncode == 0, done.stderr
    return directory, done.stdout


@pytest.mark.slow
def test_train_prints_plain_lines_and_a_sample_where_there_is_no_terminal(trained):
    _, printed = trained
    assert "training for 6 steps" in printed
    assert "step 6  loss " in printed
    assert "step 3  validation loss " in printed
    assert "sample, continuing 'def ':" in printed
    assert "\x1b" not in printed


def test_what_a_model_draws_cannot_control_the_terminal():
    assert escape_control_characters("a\x1b[2J\r\tb\n\x00é") == "a\\x1b[2J\\r\tb\n\\x00é"


@pytest.mark.slow
def test_metrics_are_json_lines_of_two_splits(trained):
    directory, _ = trained
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["split"]) for line in lines] == [
        (2, "train"),
        (3, "validation"),
        (4, "train"),
        (6, "train"),
        (6, "validation"),
    ]
    assert all(0 < line["loss"] < 10 for line in lines)


@pytest.mark.slow
def test_a_finished_run_is_not_trained_again(trained):
    directory, _ = trained
    before = (directory / "metrics.jsonl").read_text()
    again = axcore("train", "tiny", "--dir", str(directory), *TINY)
    assert again.returncode == 0, again.stderr
    assert "resuming at step 6 of 6" in again.stdout
    assert (directory / "metrics.jsonl").read_text() == before


@pytest.mark.slow
def test_generate_is_decided_by_its_seed_and_samples_differ(trained, capsys):
    directory, _ = trained
    texts = []
    for seed in ("1", "1", "2"):
        assert run(
            "generate", str(directory), "--prompt=im", "--samples=2", "--max-tokens=12",
            "--json", f"--seed={seed}",
        ) == 0  # fmt: skip
        texts.append([json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()])
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]
    assert texts[0][0] != texts[0][1]


@pytest.mark.slow
def test_generate_at_temperature_zero_ignores_the_seed(trained, capsys):
    directory, _ = trained
    texts = []
    for seed in ("1", "2"):
        assert run(
            "generate", str(directory), "--prompt=x", "--max-tokens=5", "--temperature=0",
            f"--seed={seed}",
        ) == 0  # fmt: skip
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["--top-k=1", "--top-p=0.0001", "--min-p=1"])
def test_generate_draws_from_as_few_tokens_as_it_is_told(trained, capsys, setting):
    directory, _ = trained
    texts = []
    for words in (["--temperature=0"], [setting, "--temperature=2", "--seed=5"]):
        assert run("generate", str(directory), "--prompt=x", "--max-tokens=5", *words) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_generate_draws_from_a_published_folder_what_it_draws_from_its_run(
    trained, capsys, tmp_path
):
    published = tmp_path / "published"
    export_run(load_run(trained[0]), published)
    drawn = []
    for folder in (trained[0], published):
        words = ("--prompt=im", "--max-tokens=12", "--seed=1", "--json")
        assert run("generate", str(folder), *words) == 0
        drawn.append(json.loads(capsys.readouterr().out))
    assert drawn[0].pop("step") == 6
    assert drawn[1].pop("step") is None
    assert drawn[0] == drawn[1]
    assert run("generate", str(published), "--step=6") != 0
    assert "a pretrained checkpoint has no steps" in capsys.readouterr().err


@pytest.mark.slow
def test_generate_adds_a_bias_to_the_logits_of_a_token(trained, capsys):
    directory, _ = trained
    bias = f"--logit-bias={ord('z')}=100"
    assert run("generate", str(directory), "--prompt=x", "--max-tokens=9", bias) == 0
    assert capsys.readouterr().out == f"x{'z' * 9}\n"


@pytest.mark.slow
def test_eval_gives_the_loss_that_training_ended_with(trained, capsys):
    directory, _ = trained
    assert run("evaluate", str(directory), "--json") == 0
    evaluated = json.loads(capsys.readouterr().out)
    last = json.loads((directory / "metrics.jsonl").read_text().splitlines()[-1])
    assert evaluated["step"] == 6
    assert evaluated["loss"] == pytest.approx(last["loss"], rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "code", "texts"),
    [
        (["train", "tinny"], 2, ["no experiment 'tinny'; did you mean 'tiny'?"]),
        (["train", "nowhere.yaml"], 2, ["cannot be read", "nowhere.yaml"]),
        (
            ["train", "tiny", "--set", "model.dmi=3", "--set", "max_steps=many"],
            2,
            ["has no 'dmi'", "did you mean 'dim'?", "expected int, got 'many'", "max_steps"],
        ),
        (
            ["train", "tiny", "--set", "max_steps"],
            2,
            ["expected PATH=VALUE", "--set max_steps=VALUE"],
        ),
        (["train", "tiny", "--set", "model.vocab_size=100"], 2, ["264 tokens", "model.vocab_size"]),
        (["train", "tiny", "--target", "cpu-three"], 4, ["cpu-three"]),
        (["generate", "nowhere"], 7, ["no config.json"]),
        (["evaluate", "nowhere"], 7, ["no config.json"]),
        (["generate", "nowhere", "--top-p=2"], 2, ["top_p is 2.0; expected above 0"]),
        (["generate", "nowhere", "--logit-bias=a=1"], 2, ["'a=1' is not TOKEN=NUMBER"]),
        (["config", "show", "tinny"], 2, ["did you mean 'tiny'?"]),
        (
            [
                "config",
                "show",
                "tiny",
                "--sharding",
                "--target=cpu-8",
                "--set=mesh={'pipeline': 8}",
            ],
            3,
            ["mesh axis pipeline of size 8 splits neither", "Pipeline"],
        ),
    ],
)
def test_bad_input_is_one_clear_error(arguments, code, texts, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == code
    printed = capsys.readouterr()
    for text in texts:
        assert text in printed.err
    assert "Traceback" not in printed.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_run_directory_of_another_config_is_refused_and_left_alone(trained, capsys):
    directory, _ = trained
    before = contents(directory)
    assert run("train", "tiny", "--dir", str(directory), *TINY, "--set", "seed=7") == 7
    assert "+ seed: 7" in capsys.readouterr().err
    assert contents(directory) == before


def test_missing_empty_and_malformed_data_end_a_run_before_it_starts(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "latin").mkdir()
    (tmp_path / "latin" / "a.txt").write_bytes(b"caf\xe9")
    config = tmp_path / "mine.yaml"
    for folder, text in (("none", "none"), ("empty", "empty"), ("latin", "UTF-8")):
        assert run("config", "show", "tiny", "--format=yaml", *TINY) == 0
        shown = capsys.readouterr().out
        source = (
            "source:\n    type: axcore.data.sources.text_files:TextFiles.Config\n"
            f"    folder: {tmp_path / folder}\n"
        )
        start = shown.index("source:")
        end = shown.index("  tokenizer:", start)
        config.write_text(shown[:start] + source + shown[end:])
        assert run("train", str(config), "--dir", str(tmp_path / "run")) == 6
        assert text in capsys.readouterr().err
        assert not (tmp_path / "run").exists()


def test_a_saved_config_trains_as_the_experiment_it_came_from(capsys, tmp_path):
    run("config", "show", "tiny", "--format=json")
    (tmp_path / "mine.json").write_text(capsys.readouterr().out)
    assert run("config", "diff", "tiny", str(tmp_path / "mine.json")) == 0
    assert capsys.readouterr().out == ""


def test_config_diff_shows_overrides_and_tells_by_its_exit_code(capsys):
    assert run("config", "diff", "tiny", "--set", "seed=3") == 1
    assert capsys.readouterr().out == "- seed: 0\n+ seed: 3\n"


def test_config_golden_checks_and_writes(capsys, tmp_path):
    golden = str(tmp_path / "tiny.txt")
    assert run("config", "golden", "tiny", golden) == 2
    assert "--write" in capsys.readouterr().err
    assert run("config", "golden", "tiny", golden, "--write") == 0
    assert run("config", "golden", "tiny", golden) == 0
    assert run("config", "golden", "tiny", golden, "--set", "seed=3") == 1
    assert "+seed: 3" in capsys.readouterr().out


@pytest.mark.slow
def test_the_summary_counts_exactly_what_training_reports(trained, capsys):
    _, printed = trained
    assert run("config", "show", "tiny", "--summary", *TINY[:5]) == 0
    total = capsys.readouterr().out.splitlines()[-1].removeprefix("total: ")
    count = total.split(" parameters")[0]
    assert f"model: {count} parameters" in printed


def test_experiments_lists_tiny_with_its_plugin(capsys):
    assert run("experiments", "--json") == 0
    listed = {row["name"]: row["plugin"] for row in json.loads(capsys.readouterr().out)}
    assert listed["tiny"] == "core"


@pytest.mark.slow
def test_two_fake_devices_train_as_one_does(trained, tmp_path):
    directory, _ = trained
    done = axcore("train", "tiny", "--target", "cpu-2", "--dir", str(tmp_path / "two"), *TINY)
    assert done.returncode == 0, done.stderr
    assert "mesh: fsdp 2" in done.stdout
    one, two = (
        json.loads((path / "metrics.jsonl").read_text().splitlines()[-1])
        for path in (directory, tmp_path / "two")
    )
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)
