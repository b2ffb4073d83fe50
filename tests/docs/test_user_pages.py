"""The pages that users read first: every command and every block of Python on them works."""

import json
import re
import shlex
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path

import pytest
from page_session import ANSWERED, run_session
from quick_flags import quick_environment
from trainer_checkpoints import axlearn, maxtext, published, save_axlearn, save_maxtext, scanned

from axcore.cli.main import group
from axcore.config import apply_overrides
from axcore.experiments.named import experiment

ROOT = Path(__file__).parents[2]
PAGES = tuple(
    ROOT / page
    for page in (
        "README.md",
        "docs/install.md",
        "docs/training.md",
        "docs/seeing.md",
        "docs/data.md",
        "docs/arrays.md",
        "docs/fine-tuning.md",
        "docs/evaluation.md",
        "docs/reinforcement.md",
        "docs/batch.md",
        "docs/scripting.md",
        "docs/aot.md",
        "docs/kernels.md",
        "docs/hugging-face.md",
        "docs/initial-weights.md",
        "docs/sweeps.md",
    )
)

SHORT = (
    "--set=model.dim=32",
    "--set=model.decoder.stack.num_layers=1",
    "--set=**.hidden_dim=32",
    "--set=data.seq_len=32",
    "--set=data.validation_batches=1",
    "--set=**.warmup_steps=1",
    "--set=max_steps=3",
)
"""What makes a training command short; everything else of it is as the page has it."""


LONG = ("train", "aot", "serve", "sweep")


SHORT_OF = {
    "train": SHORT,
    "sweep": (*SHORT, "--jobs=2"),
    "train digits": ("--set=max_steps=3", "--set=data.validation_batches=1"),
    "train grpo-reverse": (
        "--set=model.dim=16",
        "--set=data.batch_size=16",
        "--set=data.engine.max_num_seqs=16",
        "--set=data.validation_prompts=4",
        "--set=max_steps=2",
    ),
    "aot grpo-reverse": (
        "--set=model.dim=16",
        "--set=data.batch_size=16",
        "--set=data.engine.max_num_seqs=16",
    ),
    "generate --in": (
        "--set=engine.max_num_seqs=2",
        "--set=engine.max_num_batched_tokens=16",
        "--set=engine.num_decode_steps=2",
    ),
    "serve": (
        "--port=0",
        "--set=engine.max_num_seqs=1",
        "--set=engine.max_length=32",
        "--set=engine.max_num_batched_tokens=20",
        "--set=engine.num_decode_steps=1",
    ),
}


def blocks(page, language):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [body for name, body in found if name == language]


def commands(page):
    lines = [
        line.split("  #")[0].strip() for block in blocks(page, "") for line in block.splitlines()
    ]
    return [line for line in lines if line.startswith("axcore ")]


def rows():
    """Yields the pages; those that train or compile for several seconds are slow."""
    for page in PAGES:
        takes_long = any(line.split()[1] in LONG for line in commands(page))
        takes_long = takes_long or any(".run(" in block for block in blocks(page, "python"))
        yield pytest.param(page, id=page.stem, marks=[pytest.mark.slow] if takes_long else [])


def steps(page, folder):
    """Returns what a page does, short: its commands, then its programs."""
    for command in commands(page):
        words = shlex.split(command)[1:]
        name = f"{words[0]} --in" if "--in" in words else " ".join(words[:2])
        name = name if name in SHORT_OF else words[0]
        yield command, {"command": [*words, *SHORT_OF.get(name, ())]}
    for number, block in enumerate(blocks(page, "python")):
        shortened = re.sub(r'"max_steps": \d+', '"max_steps": 3', block)
        shortened = re.sub(r'"\*\*\.warmup_steps": \d+', '"**.warmup_steps": 1', shortened)
        script = folder / f"{page.stem}_{number}.py"
        script.write_text(shortened)
        yield block, {"script": str(script)}


def needs_a_process(step):
    """Whether it chooses devices, which a process does once."""
    return "--target" in step.get("command", ()) and step["command"][0] == "train"


def sessions(steps):
    """Splits steps into lists that one process each can take."""
    found = [[]]
    for text, step in steps:
        found += [[(text, step)], []] if needs_a_process(step) else []
        found[-1] += [] if needs_a_process(step) else [(text, step)]
    return [session for session in found if session]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder where a user tries the pages, with a little text of their own."""
    made = tmp_path_factory.mktemp("user")
    for name in ("my_texts", "corpus"):
        (made / name).mkdir()
    evaluation = ROOT / "docs/evaluation.md"
    for language, name in (("yaml", "capitals.yaml"), ("json", "capitals.jsonl")):
        (made / name).write_text(blocks(evaluation, language)[0])
    hf = published(made / "llama")
    save_maxtext(made / "maxtext" / "checkpoints", scanned(maxtext(hf)))
    save_axlearn(made / "fuji", axlearn(hf))
    (made / "prompts.jsonl").write_text(blocks(ROOT / "docs/batch.md", "json")[0])
    games = next(one for one in blocks(ROOT / "docs/reinforcement.md", "python") if "play" in one)
    (made / "games.py").write_text(games)
    for i in range(40):
        text = f"Page {i} says how many pages are before it: {i}, and how many come after it."
        (made / "my_texts" / f"{i}.md").write_text(text)
        with (made / "corpus" / "pages.jsonl").open("a") as lines:
            lines.write(json.dumps({"text": text}) + "\n")
        talk = [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": f"{i}!"}]
        with (made / "chats.jsonl").open("a") as lines:
            lines.write(json.dumps({"messages": talk}) + "\n")
        pair = {"prompt": f"{i}?", "chosen": f"{i}!", "rejected": "No."}
        with (made / "pairs.jsonl").open("a") as lines:
            lines.write(json.dumps(pair) + "\n")
        with (made / "labelled.jsonl").open("a") as lines:
            labelled = {"prompt": f"{i}?", "completion": f"{i}!", "label": i % 3 > 0}
            lines.write(json.dumps(labelled) + "\n")
    return made


@pytest.mark.quick_one_in(2)
@pytest.mark.parametrize("page", list(rows()))
@pytest.mark.every_case
def test_commands_and_programs_of_a_page_work_in_the_order_given(page, folder):
    found = sessions(steps(page, folder))
    assert found
    for session in found:
        ended, errors = run_session(
            [step for _, step in session], cwd=folder, env=quick_environment()
        )
        for (text, _), done in zip_longest(session, ended):
            assert done is not None, f"{text}\n{errors}"
            assert done.exit_code == 0, f"{text}\n{errors}"
            assert ANSWERED in done.printed or not text.startswith("axcore serve"), text
            prints = "print(" in text or text.startswith("axcore ")
            # A chat answers lines of its input, which has none here.
            assert done.printed or not prints or text.startswith("axcore chat"), text


def test_settings_of_commands_that_need_more_than_a_page_has_are_settings(tmp_path, monkeypatch):
    """Blocks of `sh` need a base model, or a key: their values are read, and nothing is trained."""
    page = ROOT / "docs/reinforcement.md"
    rewards = next(one for one in blocks(page, "") if one.startswith("def score("))
    (tmp_path / "rewards.py").write_text(rewards)
    monkeypatch.chdir(tmp_path)
    texts = [block.replace("\\\n", " ") for block in blocks(page, "sh")]
    found = [line for text in texts for line in text.splitlines()]
    found = [shlex.split(line)[2:] for line in found if line.startswith("axcore train ")]
    assert len(found) > 5
    for name, *options in found:
        given = zip(options[::2], options[1::2], strict=True)
        apply_overrides(experiment(name), [value for option, value in given if option == "--set"])
    monkeypatch.delitem(sys.modules, "rewards")
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one != str(tmp_path)])


def test_inline_commands_name_subcommands_that_exist():
    for page in PAGES:
        for name in re.findall(r"`axcore ([a-z-]+)", page.read_text()):
            assert name in group.list_commands(None), f"{page.name}: axcore {name}"


def test_links_lead_to_files():
    for page in (*PAGES, *(ROOT / "docs").rglob("*.md")):
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_make_targets_of_the_readme_exist():
    targets = re.findall(r"^make (\w+)", "\n".join(blocks(PAGES[0], "")), re.MULTILINE)
    assert {"demo", "test"} <= set(targets)
    for target in targets:
        subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True)
