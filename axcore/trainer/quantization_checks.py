"""Whether the hardware can do what a config's quantization schemes ask of it."""

from typing import Any

from axcore.config import find_config
from axcore.errors import KernelError
from axcore.layers import Dot
from axcore.plugins import Hardware, QuantizationScheme, plugin_host


def check_quantization_schemes(cfg: Any, hardware: Hardware) -> None:
    """Checks that every scheme that a trainer's config holds can run on some hardware.

    A scheme whose op is pinned is left to the pinned kernel's own word.

    Raises:
        KernelError: Naming the layers of each scheme that cannot, and why.
    """
    schemes = plugin_host().records(QuantizationScheme)
    problems = {
        scheme.name: reason
        for scheme in schemes
        if scheme.op not in cfg.kernels
        and (reason := scheme.unsupported_hardware_reason(hardware)) is not None
    }
    refused = {one.config.resolve(): one for one in schemes if one.name in problems}
    paths: dict[str, list[str]] = {}
    for found in find_config(cfg.model, Dot):  # rules for other hardware may hold others
        if type(found.node) in refused:
            name = refused[type(found.node)].name
            paths.setdefault(name, []).append(f"model.{found.path}")
    if not paths:
        return
    fitting = [scheme.name for scheme in schemes if scheme.name not in problems]
    raise KernelError(
        "\n".join(
            f"{name} computes {_listed(where)}, and cannot run on {hardware.name}: {problems[name]}"
            for name, where in paths.items()
        ),
        where="model",
        hint=f"leave it out, or take {' or '.join(fitting) or 'other hardware'}; to compute the "
        "same numbers slowly: --set 'kernels[\"quantized_dot\"]=emulated'",
    )


def _listed(paths: list[str]) -> str:
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"{paths[0]}{more}"
