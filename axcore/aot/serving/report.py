"""`ServingReport`: what a model takes that serves, as values and as JSON.

Bytes are those of one device.
"""

import json
from collections.abc import Mapping
from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class CallCost:
    """What one call of a program takes.

    Args:
        rows: Rows of the call.
        tokens: New tokens of each.
        seconds: The longer of `compiled_s` and `moved_s`; None where the target's figures are not
            known.
        compiled_s: By the compiler's cycles, or a roofline of each instruction, with kernels and
            waiting for collectives.
        moved_s: Bytes that the program moves over the memory's bandwidth.
        floor_s: Bytes of weights and of the caches that are read over the memory's bandwidth: no
            program that reads each once is faster.
        products_s: Products by the peak.
        waiting_s: Waiting for collectives, as far as their bytes take.
        num_collectives: How many run. What each takes to begin is counted nowhere.
        num_instructions: How many the device is given in a call.
        temporaries_bytes: What the program allocates while it runs.
        program_bytes: The program itself.
        copied_bytes: Caches that it copies where it should write in place.
        unknown_loops: Loops whose rounds cannot be read off, counted as one.
        compile_s: Seconds that lowering and compiling took here.
    """

    rows: int
    tokens: int
    seconds: float | None
    compiled_s: float | None
    moved_s: float | None
    floor_s: float | None
    products_s: float | None
    waiting_s: float | None
    num_collectives: int
    num_instructions: int
    temporaries_bytes: int
    program_bytes: int
    copied_bytes: int
    unknown_loops: int
    compile_s: float

    @property
    def tokens_per_s(self) -> float | None:
        """New tokens a second, of all rows."""
        return None if not self.seconds else self.rows * self.tokens / self.seconds

    @property
    def over_floor(self) -> float | None:
        """Predicted time over the least that its bytes can take."""
        return None if not self.seconds or not self.floor_s else self.seconds / self.floor_s

    @property
    def bound_by(self) -> str:
        """What takes most of the time: bandwidth, products, collectives, or instructions, each of
        which the compiler gives more time than its bytes and products need."""
        if self.seconds is None:
            return "not known"
        parts = {
            "bandwidth": self.moved_s,
            "products": self.products_s,
            "collectives": self.waiting_s,
        }
        name, longest = max(parts.items(), key=lambda part: part[1] or 0.0)
        return name if longest and longest >= self.seconds / 2 else "instructions"


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
        prompt: Tokens that the first program reads.
        context: Tokens of every row in caches while it decodes.
        page_size: Tokens of a page.
        capacity_bytes: What programs can have of a device; None where it is not known.
        weight_bytes: The weights.
        page_bytes: A page of the caches, in all layers.
        row_bytes: What caches keep of a row besides.
        prefill: Reading a prompt; it gives the first token.
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
    page_size: int
    capacity_bytes: int | None
    weight_bytes: int
    page_bytes: int
    row_bytes: int
    prefill: CallCost
    decode: tuple[CallCost, ...]
    kernels: tuple[str, ...] = ()

    @property
    def token_bytes(self) -> float:
        """What a page takes for each of its tokens."""
        return self.page_bytes / self.page_size

    @property
    def spare_bytes(self) -> int | None:
        """What is left beside weights, programs and their temporaries; below 0 nothing fits."""
        if self.capacity_bytes is None:
            return None
        calls = (self.prefill, *self.decode)
        programs = sum(one.program_bytes for one in calls)
        at_once = max(one.temporaries_bytes for one in calls)
        rows = max(one.rows for one in calls) * self.row_bytes
        return self.capacity_bytes - self.weight_bytes - programs - at_once - rows

    @property
    def pages_that_fit(self) -> int | None:
        """Pages that fit beside all else; None where caches grow by no token, or nobody knows."""
        spare = self.spare_bytes
        return None if spare is None or not self.page_bytes else max(0, spare) // self.page_bytes

    def to_json(self) -> str:
        """Returns the report as JSON, with all that follows from its fields."""
        fields = attrs.asdict(self)
        for name in ("token_bytes", "spare_bytes", "pages_that_fit"):
            fields[name] = getattr(self, name)
        for one, cost in zip(
            (fields["prefill"], *fields["decode"]), (self.prefill, *self.decode), strict=True
        ):
            for name in _DERIVED:
                one[name] = getattr(cost, name)
        return json.dumps(fields, indent=2)


_DERIVED = ("tokens_per_s", "over_floor", "bound_by")


def serving_report_from_json(text: str) -> ServingReport:
    """Returns the report that `to_json` wrote."""
    fields: dict[str, Any] = json.loads(text)
    for name in ("token_bytes", "spare_bytes", "pages_that_fit"):
        del fields[name]
    prefill, decode = fields.pop("prefill"), fields.pop("decode")
    return ServingReport(
        prefill=_call_cost(prefill),
        decode=tuple(map(_call_cost, decode)),
        kernels=tuple(fields.pop("kernels")),
        **fields,
    )


def _call_cost(fields: dict[str, Any]) -> CallCost:
    return CallCost(**{name: value for name, value in fields.items() if name not in _DERIVED})
