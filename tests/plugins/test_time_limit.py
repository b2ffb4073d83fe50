"""A plugin that hangs when it is loaded, or imports jax there, is named, and nothing else stops."""

import subprocess
import sys
import threading
import time

import pytest

from axcore.errors import PluginError
from axcore.plugins import Op
from axcore.plugins.loading import TIMEOUT

HANGS = "import time\ntime.sleep(600)\n"
GOOD = '@hook.ops\ndef ops():\n    yield Op(name="good", fn=Ref("a:b"), summary="")'


@pytest.mark.parametrize(
    (
        "name",
        "body",
        "doing",
        "line",
    ),  # a name each, as a thread that hangs keeps its module locked
    [
        ("axl-asleep", HANGS, "import", 2),
        (
            "axl-busy",
            "import sys\nwhile not hasattr(sys, 'axl-busy'):\n    pass\n",
            "import",
            2,
        ),
        ("axl-waiting", "import queue\nqueue.Queue().get()", "import", 2),
        (
            "axl-registering",
            "import time\nfrom axcore.plugins import hook\n"
            "@hook.ops\ndef ops():\n    time.sleep(600)\n    yield",
            "registration",
            5,
        ),
    ],
)
def test_plugin_that_hangs_is_named_with_the_line_and_the_others_load(
    installed, source, name, body, doing, line
):
    folder = installed.add(name, body)
    installed.add("axl-good", source(GOOD))
    started = time.monotonic()
    host = installed.host({TIMEOUT: "3"})
    setattr(sys, name, True)  # lets the busy one end
    assert time.monotonic() - started < 60
    trouble = host.plugin(name).trouble
    assert trouble.startswith(
        f"the {doing} of plugin {name!r} has not finished after 3 s; it is at {folder}/plugin.py:"
    )
    assert int(trouble.rpartition(":")[2]) in (line, line + 1)
    assert "good" in {op.name for op in host.records(Op)}
    with pytest.raises(PluginError, match=f"{TIMEOUT}=18 .* or AXCORE_BLOCK={name}"):
        raise host.plugin(name).error


def test_plugin_that_hangs_is_named_in_threads_too(installed):
    installed.add("axl-threaded", HANGS)
    troubles = []
    thread = threading.Thread(
        target=lambda: troubles.append(
            installed.host({TIMEOUT: "3"}).plugin("axl-threaded").trouble
        )
    )
    thread.start()
    thread.join(300)
    assert "plugin 'axl-threaded' has not finished" in troubles[0]


def test_help_names_the_plugin_that_hangs(make_dist, cli):
    make_dist("axl-acme", HANGS)
    ran = cli("--help", AXCORE_PLUGINS="axl-acme", **{TIMEOUT: "3"})
    assert ran.exit_code == 0
    assert "Broken plugins: axl-acme" in ran.stdout
    ran = cli("plugins", AXCORE_PLUGINS="axl-acme", **{TIMEOUT: "3"})
    assert "the import of plugin 'axl-acme' has not finished after 3 s" in ran.stdout


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf"])
def test_time_limit_that_is_none_is_refused(installed, text):
    with pytest.raises(PluginError, match=f"{TIMEOUT} is '{text}'; expected a number of seconds"):
        installed.host({TIMEOUT: text})


@pytest.mark.parametrize(
    "body",
    [
        "import jax",
        "from axcore.layers import RMSNorm",
        "from axcore.plugins import hook\n@hook.ops\ndef ops():\n    import jax\n    yield from ()",
    ],
)
@pytest.mark.quick_one_in(6)
def test_plugin_that_imports_jax_when_it_is_loaded_is_named(make_dist, body):
    make_dist("axl-acme", body)
    program = (
        "from axcore.plugins import load_host\n"
        "host = load_host({'AXCORE_PLUGINS': 'axl-acme'})\n"
        "print(host.plugin('axl-acme').state, host.plugin('axl-acme').trouble)"
    )
    path = ":".join(path for path in sys.path if path)
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": path, "JAX_PLATFORMS": "cpu", "AXCORE_PLUGIN_TIMEOUT_S": "120"},
    )
    assert ran.stdout.startswith("failed plugin 'axl-acme' imports jax when it is loaded")
