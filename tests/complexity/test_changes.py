"""`axcore loc diff` gives the answers that were counted by hand on three recorded repositories.

Each is a stream of `git fast-export`; the counts are next to what was counted.
"""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from axcore.complexity import measure_change, measure_commits
from axcore.errors import ComplexityError

RECORDED = Path(__file__).parent / "repositories"

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest.fixture
def repository(tmp_path):
    def restored(name: str) -> Path:
        folder = tmp_path / name
        subprocess.run(["git", "init", "-q", "-b", "main", folder], check=True)
        with (RECORDED / f"{name}.fast-export").open("rb") as stream:
            importing = ["git", "-C", folder, "fast-import", "--quiet"]
            subprocess.run(importing, stdin=stream, check=True)
        return folder

    return restored


def first_commit(folder: Path) -> str:
    listing = ["git", "-C", folder, "rev-list", "--max-parents=0", "main"]
    return subprocess.run(listing, check=True, capture_output=True, text=True).stdout.strip()


def counts(change) -> tuple[int, int, int, int]:
    return tuple(change.lines(kind) for kind in ("new", "existing", "test", "other"))


def existing(change) -> dict[str, int]:
    return {file.path: file.lines for file in change.files if file.kind == "existing"}


def test_an_encapsulated_feature_changes_no_existing_module(repository):
    folder = repository("encapsulated")
    change = measure_change(folder, first_commit(folder), "main")
    # rotate.py: an import, two signatures, a return of four lines and one of one
    # tests/test_rotate.py: an import, a signature, an assertion; README.md: a line of text
    assert counts(change) == (8, 0, 3, 1)


def test_a_flag_costs_lines_in_every_model(repository):
    folder = repository("flags")
    flag, test = measure_commits(folder, first_commit(folder), "main")
    # layers.py: the signature, the two lines that ask, and a new function of two;
    # each of three models: its signature and its call
    assert existing(flag) == {"layers.py": 5, "models/a.py": 2, "models/b.py": 2, "models/c.py": 2}
    assert counts(flag) == (0, 11, 0, 0)
    assert (test.title, counts(test)) == ("Test it", (0, 0, 2, 0))


def test_moves_cost_nothing_and_edits_count_once(repository):
    folder = repository("moves")
    moved, edited = measure_commits(folder, first_commit(folder), "main")
    assert existing(moved) == {"pkg/new_name.py": 0}
    # new_name.py: one line edited, two taken away, one replaced by four; gone.py: two taken away;
    # legacy.py, which is not Python 3: one line of text
    assert existing(edited) == {"pkg/new_name.py": 7, "pkg/gone.py": 2, "legacy.py": 1}
    unparsed = {file.path for file in edited.files if not file.is_parsed}
    assert unparsed == {"data.bin", "legacy.py", "settings.toml"}


def test_commits_add_up_to_the_whole_where_no_line_is_touched_twice(repository):
    folder = repository("flags")
    whole = counts(measure_change(folder, first_commit(folder), "main"))
    parts = [counts(one) for one in measure_commits(folder, first_commit(folder), "main")]
    assert whole == tuple(map(sum, zip(*parts, strict=True)))


def test_a_commit_that_is_not_there_is_named(repository):
    with pytest.raises(ComplexityError, match="'nowhere' is not a commit"):
        measure_change(repository("flags"), "main", "nowhere")


def test_a_folder_without_git_is_named(tmp_path):
    with pytest.raises(ComplexityError, match="not a git repository"):
        measure_change(tmp_path, "a", "b")


@pytest.mark.slow
def test_the_command_prints_what_was_measured(repository, cli):
    folder = repository("flags")
    span = f"{first_commit(folder)}..main"
    done = cli("loc", "diff", span, "--repository", str(folder), "--json")
    assert json.loads(done.stdout)[0]["lines"] == {"new": 0, "existing": 11, "test": 2, "other": 0}
    assert (
        "existing: 5 in layers.py" in cli("loc", "diff", span, "--repository", str(folder)).stdout
    )
    refused = cli("loc", "diff", "main", "--repository", str(folder))
    assert refused.exit_code == 10
    assert "'main' is not two commits" in refused.stderr
