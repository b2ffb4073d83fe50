"""The hooks themselves: declared on records, documented, typed, and implemented by somebody."""

import inspect
import pathlib
import re
import subprocess
import sys

import attrs
import pytest
from mypy import api

import axcore.plugins.records
from axcore.errors import PluginError
from axcore.plugins import Op, hook, plugin_host
from axcore.plugins.generate import records_module
from axcore.plugins.hook_reference import COMMAND, example, hook_reference, record_classes
from axcore.plugins.records import Hooks

HOOKS = sorted(Hooks.decorators())


def test_list_of_hooks_is_made_from_the_records():
    written = pathlib.Path(axcore.plugins.records.__file__).read_text()
    assert written == records_module(), f"run: {COMMAND}"
    assert {hook: one.record for hook, one in Hooks.decorators().items()} == record_classes()


def test_one_file_adds_a_hook(tmp_path):
    root = pathlib.Path(__file__).parents[2]
    package = tmp_path / "axcore"
    subprocess.run(["cp", "-r", str(root / "axcore"), str(package)], check=True)
    (tmp_path / "docs" / "plugins").mkdir(parents=True)
    (package / "plugins" / "records" / "fountain.py").write_text(
        "from typing import ClassVar\nimport attrs\n"
        "from axcore.registration import Record, record\n"
        "from axcore.registration import a_name\n\n"
        '@record(hook="fountains")\n@attrs.frozen(kw_only=True)\nclass Fountain(Record):\n'
        '    """A fountain.\n\n    Args:\n        name: Shown.\n\n    Example:\n'
        "        @hook.fountains\n        def fountains():\n            yield Fountain(name='a')\n"
        '    """\n\n    kind: ClassVar[str] = "fountain"\n'
        "    name: str = attrs.field(validator=a_name)\n"
    )
    environment = {"PYTHONPATH": str(tmp_path), "PATH": ""}
    subprocess.run(
        [sys.executable, "-m", "axcore.plugins.generate"],
        cwd=tmp_path,
        env=environment,
        check=True,
    )
    program = "from axcore.plugins import Fountain, hook; assert hook.fountains.record is Fountain"
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True)
    assert (
        "## fountains\n\n`Fountain`: A fountain."
        in (tmp_path / "docs/plugins/hooks.md").read_text()
    )


@pytest.mark.parametrize("name", HOOKS)
def test_example_of_every_hook_yields_its_records(installed, source, name):
    record = Hooks.decorators()[name].record
    assert f"@hook.{name}\n" in example(record)
    installed.add("axl-example", source(example(record)))
    plugin = installed.host().plugin("axl-example")
    assert plugin.trouble == ""
    assert [type(one) for one in plugin.records] == [record]


@pytest.mark.parametrize("name", HOOKS)
def test_every_field_of_every_record_is_documented(name):
    record = Hooks.decorators()[name].record
    for field in attrs.fields(record):
        assert field.name == "plugin" or f"    {field.name}: " in (inspect.getdoc(record) or "")


def test_every_hook_has_a_client_and_those_of_the_core_alone_are_provisional():
    users = {name: [] for name in HOOKS}
    for plugin in plugin_host().plugins():
        for name in plugin.hooks:
            users[name].append(plugin.name)
    assert all(users.values())
    page = hook_reference()
    marked = set(re.findall(r"^## (\w+)\n\n\*Provisional\.\*$", page, re.MULTILINE))
    assert marked == {name for name in HOOKS if users[name] == ["core"]}


def test_decorated_function_is_still_the_function():
    def kernels():
        yield from ()

    assert hook.kernels(kernels) is kernels


def test_unknown_hook_is_an_attribute_error_that_says_what_is_near():
    assert not hasattr(hook, "kernel")
    with pytest.raises(PluginError, match="there is no hook 'kernel'; did you mean 'kernels'"):
        hook.kernel  # noqa: B018


@pytest.mark.slow  # mypy reads axcore first
def test_type_checkers_know_which_records_a_hook_yields(tmp_path):
    file = tmp_path / "snippet.py"
    file.write_text(
        "from collections.abc import Iterator\n"
        "from axcore.plugins import MeshRule, Op, hook\n"
        "def ops() -> Iterator[Op]:\n    yield from ()\n"
        "def rules() -> Iterator[MeshRule]:\n    yield from ()\n"
        "hook.ops(ops)\nhook.ops(rules)\nhook.opps\n"
    )
    root = pathlib.Path(__file__).parents[2]
    options = ["--config-file", str(root / "pyproject.toml"), "--no-error-summary"]
    out, _, _ = api.run([*options, "--cache-dir", str(root / ".mypy_cache"), str(file)])
    wrong_record, wrong_name = out.splitlines()
    assert 'incompatible type "Callable[[], Iterator[MeshRule]]"' in wrong_record
    assert 'expected "Callable[[], Iterable[Op]]"' in wrong_record
    assert '"Hooks" has no attribute "opps"; maybe "ops"?' in wrong_name


def test_record_keeps_its_class_through_the_decorator():
    assert Op.hook == "ops"
    assert attrs.fields_dict(Op)["summary"].type is str
