"""Plugins that are broken before a run starts: metadata, imports and registration."""

import zipfile
from pathlib import Path

from broken_plugins import HANG, HEAD, BrokenPlugin, brings, started

from axcore.testing import make_dist

GOOD = brings("mesh_rules", 'MeshRule(match="acme-*", mesh={"fsdp": -1})')
KERNEL = 'Kernel(op="attention", name="odd", priority=200, forward=Ref("axl_acme.code:run"){})'
OP = 'Op(name="odd", fn=Ref("axl_acme.code:run"), summary="")'


def _file(name: str, content: bytes | None):
    def change(root: Path) -> None:
        path = root / "axl_acme-1.0.dist-info" / name
        path.unlink() if content is None else path.write_bytes(content)

    return change


def _archived(root: Path) -> None:
    info = "axl_acme-1.0.dist-info"
    with zipfile.ZipFile(root / "all.zip", "w") as file:
        file.write(root / info / "METADATA", f"{info}/METADATA")
        file.writestr(f"{info}/entry_points.txt", b"[axcore.v1]\naxl-acme = \xff")


def _replaced(root: Path, **details: object) -> None:
    for path in (root / "axl_acme-1.0.dist-info").iterdir():
        path.unlink()
    (root / "axl_acme-1.0.dist-info").rmdir()
    make_dist(root, "axl-acme", GOOD, **details)


_POINTS = "entry_points.txt"
_METADATA = [
    ("METADATA is not UTF-8", "METADATA", _file("METADATA", b"Name: axl-acme\nVersion: \xff\n")),
    ("METADATA is missing", "METADATA", _file("METADATA", None)),
    (
        "It requires a newer axcore",
        "requires",
        _file("METADATA", b"Name: axl-acme\nVersion: 1\nRequires-Dist: axcore>=9.0\n"),
    ),
    (
        "It requires something of axcore that cannot be read",
        "requires",
        _file("METADATA", b"Name: axl-acme\nVersion: 1\nRequires-Dist: axcore>>1\n"),
    ),
    (
        "The entry point is not a module",
        "entry point",
        _file(_POINTS, b"[axcore.v1]\naxl-acme = axl_acme.plugin:nothing"),
    ),
    ("entry_points.txt is not UTF-8", _POINTS, _file(_POINTS, b"[axcore.v1]\naxl-acme = \xff")),
    ("entry_points.txt is not UTF-8, in an archive", _POINTS, _archived),
    (
        "entry_points.txt is cut off",
        _POINTS,
        _file(_POINTS, b"[axcore.v1\naxl-acme = axl_acme.plugin"),
    ),
    ("The group of entry points is empty", _POINTS, _file(_POINTS, b"[axcore.v1]\n")),
    ("It is written for another level", "axcore.v0", lambda root: _replaced(root, level=0)),
    (
        "Two distributions bring plugins of one name",
        "axl-other",
        lambda root: make_dist(root, "axl-other", GOOD, plugin_name="axl-acme"),
    ),
]

_MODULES = [
    ("The module raises", "failed", "raise ValueError('bad weather')"),
    ("The module needs what is not installed", "no_such_package", "import no_such_package"),
    ("The module ends the process", "SystemExit", "raise SystemExit(3)"),
    ("The module is not Python", "SyntaxError", "def broken(:"),
    ("The module hangs", "import of", f"import sys, time\n{HANG}"),
    (
        "A hook hangs",
        "registration of",
        f"{HEAD}import sys, time\n@hook.ops\ndef ops():\n    {HANG}\n    yield",
    ),
    (
        "A hook raises after its first record",
        "failed",
        f"{HEAD}@hook.ops\ndef ops():\n    yield {OP}\n    raise OSError('no chip')",
    ),
]

_HOOKS = [
    ("A hook yields a dict", "hook kernels", brings("kernels", "{'op': 'attention'}")),
    ("A hook yields another hook's record", "hook kernels", brings("kernels", OP)),
    ("A hook returns None", "hook kernels", f"{HEAD}@hook.kernels\ndef kernels():\n    pass"),
    ("A hook returns one record", "hook ops", f"{HEAD}@hook.ops\ndef ops():\n    return {OP}"),
    (
        "A hook is misspelt",
        "'kernals'",
        f"{HEAD}@hook.kernals\ndef kernels():\n    yield",
    ),
    (
        "A hook has a parameter with a default",
        "hook kernels",
        f"{HEAD}@hook.kernels\ndef kernels(hardware=None):\n    yield",
    ),
    ("A hook is not marked", "axl_acme.plugin.kernels", "def kernels():\n    yield"),
    (
        "A record comes twice",
        "'odd'",
        f"{HEAD}@hook.ops\ndef ops():\n    yield {OP}\n    yield {OP}",
    ),
    ("A record is one of the core's", "'attention'", brings("ops", OP.replace("odd", "attention"))),
    (
        "A kernel is for an op that nobody declares",
        "'atention'",
        brings("kernels", KERNEL.format("").replace("attention", "atention")),
    ),
    (
        "A field has the wrong type",
        "Kernel.priority",
        brings("kernels", KERNEL.format("").replace("200", "2e2")),
    ),
    (
        "A kernel is of no band",
        "Kernel.priority",
        brings("kernels", KERNEL.format("").replace("200", "150")),
    ),
    (
        "A kernel has two gradients",
        "kernel attention/odd",
        brings("kernels", KERNEL.format(', is_differentiable=True, backward=Ref("a:b")')),
    ),
    ("A field is missing", "summary", brings("ops", 'Op(name="odd", fn=Ref("a:b"))')),
    ("A field is misspelt", "sumary", brings("ops", OP.replace("summary", "sumary"))),
    ("A Ref is not one", "Ref target", brings("ops", OP.replace(":run", ".run"))),
    (
        "A name is empty",
        "Op.name",
        brings("ops", OP.replace('"odd"', '""')),
    ),
]

CASES = [
    *(BrokenPlugin("Metadata", what, n, GOOD, started, change=c) for what, n, c in _METADATA),
    *(BrokenPlugin("Imports", what, names, body, started) for what, names, body in _MODULES),
    *(BrokenPlugin("Registration", what, names, body, started) for what, names, body in _HOOKS),
]
