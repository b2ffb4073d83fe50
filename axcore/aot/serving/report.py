"""`ServingReport`: what a model takes that serves, as values and as JSON.

Bytes are those of one device.
"""

import json
from collections.abc import Mapping
from typing import Any

import attrs

from axcore.aot.serving.call_cost import CallCost
from axcore.config.json_files import parse_json


@attrs.frozen(kw_only=True)
class FirstToken:
    """When a request's first token comes.

    Args:
        beside: Rows that draw meanwhile.
        pieces: Tokens of each piece in which the prompt is read.
        waits_s: Time at most until the request is at work: calls that were started before.
        cost: From there to the token: pieces, and between two of them a token of each row beside.
    """

    beside: int
    pieces: tuple[int, ...]
    waits_s: float | None
    cost: CallCost


@attrs.frozen(kw_only=True)
class ServingReport:
    """The report of one experiment that serves on one target.

    Args:
        experiment: Its name.
        target: The hardware's name.
        chips: Chips of the target.
        compiler: What compiled it.
        limits: What the compiled programs do not show of the hardware.
        versions: Of jax and jaxlib.
        mesh: Sizes of the mesh's axes above 1.
        prompt: Tokens of a prompt.
        context: Tokens of every row in caches while it draws.
        max_num_seqs: Rows of the engine.
        max_num_batched_tokens: Tokens of prompts that a step reads at most.
        num_decode_steps: Tokens of each row that a call draws while none is read.
        page_size: Tokens of a page; None where caches have no pages.
        num_pages: Pages that the engine takes there.
        num_programs: Programs that the engine compiles.
        num_compiled: Those of them that were compiled for this report.
        compile_s: Seconds that lowering and compiling took here.
        capacity_bytes: What programs can have of a device; None where it is not known.
        weight_bytes: The weights.
        drawing_bytes: What slots draw by: settings, and tokens that penalties count.
        program_bytes: All programs of the engine; see `program_bytes` in `measure`.
        temporaries_bytes: The most that one of them allocates while it runs.
        page_bytes: A page of the caches, in all layers.
        row_bytes: What caches keep of a row besides.
        first: Times to the first token after a prompt, by rows beside it.
        decode: A token of every row, by number of rows.
        kernels: Which kernel serves each op, and why.
    """

    experiment: str
    target: str
    chips: int
    compiler: str
    limits: str = ""
    versions: Mapping[str, str] = {}
    mesh: Mapping[str, int] = {}
    prompt: int
    context: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_decode_steps: int
    page_size: int | None
    num_pages: int | None
    num_programs: int
    num_compiled: int
    compile_s: float
    capacity_bytes: int | None
    weight_bytes: int
    drawing_bytes: int
    program_bytes: int
    temporaries_bytes: int
    page_bytes: int
    row_bytes: int
    first: tuple[FirstToken, ...]
    decode: tuple[CallCost, ...]
    kernels: tuple[str, ...] = ()

    @property
    def engine_cache_bytes(self) -> int:
        """What the engine's caches take."""
        return self.max_num_seqs * self.row_bytes + (self.num_pages or 0) * self.page_bytes

    @property
    def spare_bytes(self) -> int | None:
        """What is left beside all that the engine has; below 0 it does not fit."""
        if self.capacity_bytes is None:
            return None
        held = self.weight_bytes + self.drawing_bytes + self.engine_cache_bytes
        return self.capacity_bytes - held - self.program_bytes - self.temporaries_bytes

    @property
    def pages_that_fit(self) -> int | None:
        """Pages that memory holds; None where caches grow by no token, or nobody knows."""
        if self.spare_bytes is None or not self.page_bytes or self.num_pages is None:
            return None
        return max(0, self.num_pages + self.spare_bytes // self.page_bytes)

    def to_json(self) -> str:
        """Returns the report as JSON, with all that follows from its fields."""
        fields = attrs.asdict(self)
        for name in _OF_REPORT:
            fields[name] = getattr(self, name)
        costs = (*(one.cost for one in self.first), *self.decode)
        places = (*(one["cost"] for one in fields["first"]), *fields["decode"])
        for place, cost in zip(places, costs, strict=True):
            place |= {name: getattr(cost, name) for name in _OF_COST}
        return json.dumps(fields, indent=2)


_OF_REPORT = ("engine_cache_bytes", "spare_bytes", "pages_that_fit")
_OF_COST = ("tokens_per_s", "over_floor", "bound_by")


def serving_report_from_json(text: str) -> ServingReport:
    """Returns the report that `to_json` wrote."""
    fields: dict[str, Any] = parse_json(text)
    for name in _OF_REPORT:
        del fields[name]
    return ServingReport(
        first=tuple(map(_first_token, fields.pop("first"))),
        decode=tuple(map(_call_cost, fields.pop("decode"))),
        kernels=tuple(fields.pop("kernels")),
        **fields,
    )


def _first_token(fields: dict[str, Any]) -> FirstToken:
    pieces, cost = tuple(fields["pieces"]), _call_cost(fields["cost"])
    return FirstToken(**{**fields, "pieces": pieces, "cost": cost})


def _call_cost(fields: dict[str, Any]) -> CallCost:
    return CallCost(**{name: value for name, value in fields.items() if name not in _OF_COST})
