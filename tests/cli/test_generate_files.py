"""`axcore generate`: files of prompts, killed and resumed; beams; and what it refuses."""

import json
import os
import subprocess
import sys

import pytest
from quick_flags import quick_environment

from axcore.cli.main import main
from axcore.testing.tiny import small_experiment

FEW = ("max_num_seqs=2", "max_num_batched_tokens=16", "num_decode_steps=2")
ENDS_ITSELF = """
import os, sys
from axcore.batch_inference import AnswerFile
from axcore.cli.main import main
add = AnswerFile.add
def add_or_end(self, line):
    if self.num_lines == {line}:
        os.write(self._descriptor, b'{{"index": {line}, "prom')
        os.kill(os.getpid(), {signal})
    add(self, line)
AnswerFile.add = add_or_end
main(["generate", *sys.argv[1:]])
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("answered")
    small_experiment(folder / "text").build().run(folder / "run")
    prompts = [json.dumps({"prompt": f"The {number} dog", "id": number}) for number in range(9)]
    (folder / "prompts.jsonl").write_text("\n".join(prompts))
    return folder / "run"


def generate(run, answers, program=("-m", "axcore", "generate")):
    """Runs the command in a process of its own, whose programs are those of the others."""
    words = ["--in", str(run.parent / "prompts.jsonl"), "--out", str(answers), "--samples=2"]
    words += ["--max-tokens=7", *(f"--set=engine.{one}" for one in FEW)]
    return subprocess.run(
        [sys.executable, *program, str(run), *words],
        env={**os.environ, **quick_environment()},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_beams_are_printed_the_likeliest_first(run, capsys):
    words = ["--prompt", "The ", "--beams=3", "--samples=2", "--max-tokens=4", "--json"]
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["generate", str(run), *words])
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["score"] > second["score"]
    assert first["score"] == pytest.approx(first["logprob"] / (first["tokens"] + first["is_ended"]))
    assert first["text"] != second["text"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--top-k=2"], "--beams samples nothing, so there is no --top-k"),
        (["--samples=4"], "--samples is 4, more than the 3 of --beams"),
    ],
)
def test_beams_take_nothing_of_samples(run, capsys, words, said):
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["generate", str(run), "--beams=3", *words])
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_killed_and_stopped_within_lines_it_ends_with_the_file_of_an_undisturbed_one(run, tmp_path):
    undisturbed, disturbed = tmp_path / "undisturbed.jsonl", tmp_path / "disturbed.jsonl"
    done = generate(run, undisturbed)
    assert done.returncode == 0, done.stderr
    assert "9 answers; " in done.stdout
    assert "sampling: 9 of 9, " in done.stderr
    killed = generate(run, disturbed, ("-c", ENDS_ITSELF.format(line=3, signal=9)))
    assert killed.returncode == -9, killed.stderr
    assert disturbed.read_bytes().endswith(b'{"index": 3, "prom')
    stopped = generate(run, disturbed, ("-c", ENDS_ITSELF.format(line=5, signal=2)))
    assert stopped.returncode == 130, stopped.stderr
    assert f"{disturbed} has 5 of 9 answers; the same command resumes" in stopped.stderr
    done = generate(run, disturbed)
    assert "9 answers, 5 of them from before" in done.stdout, done.stderr
    assert disturbed.read_bytes() == undisturbed.read_bytes()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--in=p.jsonl"], 2, "--in needs --out, and no --prompt"),
        (["--in=p.jsonl", "--out=a.jsonl", "--prompt=a"], 2, "--in needs --out, and no --prompt"),
        (["--stop=a"], 2, "--stop needs --in FILE"),
        (["--out=a.jsonl"], 2, "--out needs --in FILE"),
        (["--set=engine.max_num_seqs=2"], 2, "--set needs --in FILE"),
        (["--in=p.jsonl", "--out=a.jsonl", "--top-p=2"], 2, "top_p is 2.0; expected above 0"),
        (["--in=p.jsonl", "--out=a.jsonl", "--set=engine.rows=2"], 2, "has no 'rows'"),
        (["--in=absent.jsonl", "--out=a.jsonl"], 6, "there is no such file"),
        (["--in=empty.jsonl", "--out=a.jsonl"], 6, "empty.jsonl holds no prompt"),
        (["--in=p.jsonl", "--out=a.jsonl"], 7, "there is no such directory"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_loaded_or_written(
    words, code, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}\n')
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(SystemExit) as ended:
        main(["generate", "nowhere", *words])
    assert ended.value.code == code
    assert said in capsys.readouterr().err
    assert sorted(os.listdir()) == ["empty.jsonl", "p.jsonl"]
