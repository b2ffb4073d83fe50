"""`ServingReport`: what a model takes that serves, as values and as JSON.

Bytes are those of one device. `ServingLoad` is what is asked of the model, `CallCost` what calls
of its programs take.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from axcore.config.json_files import parse_json
from axcore.errors import ConfigError
from axcore.inference import EngineConfig, Sampling


@attrs.frozen(kw_only=True)
class CallCost:
    """What a call of a program takes, or several, one after the other.

    Args:
        rows: Rows of a call.
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
        num_instructions: How many the device is given.
        temporaries_bytes: What the program allocates while it runs; of several the most.
        program_bytes: The program itself; of several the largest.
        copied_bytes: Caches that it copies where it should write in place.
        unknown_loops: Loops whose rounds cannot be read off, counted as one.
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


_TIMES = ("seconds", "compiled_s", "moved_s", "floor_s", "products_s", "waiting_s")
_COUNTS = ("num_collectives", "num_instructions")
_LARGEST = ("temporaries_bytes", "program_bytes", "copied_bytes", "unknown_loops")


def sum_of_calls(costs: Sequence[CallCost], *, rows: int, tokens: int | None = None) -> CallCost:
    """Return what calls take, one after the other.

    Args:
        costs: Of each call.
        rows: Rows that they are for.
        tokens: New tokens of each; None for those of the calls.
    """

    def time(name: str) -> float | None:
        parts = [getattr(one, name) for one in costs]
        return None if None in parts else sum(parts)

    fields: dict[str, Any] = {
        **{name: time(name) for name in _TIMES},
        **{name: sum(getattr(one, name) for one in costs) for name in _COUNTS},
        **{name: max(getattr(one, name) for one in costs) for name in _LARGEST},
    }
    num_tokens = sum(one.tokens for one in costs) if tokens is None else tokens
    return CallCost(rows=rows, tokens=num_tokens, **fields)


def shared_evenly(cost: CallCost, count: int) -> CallCost:
    """Return an even part of what calls take: of those that decode so many tokens, of one token."""
    times = {name: getattr(cost, name) for name in _TIMES}
    fields: dict[str, Any] = {
        **{name: None if time is None else time / count for name, time in times.items()},
        **{name: round(getattr(cost, name) / count) for name in _COUNTS},
    }
    return attrs.evolve(cost, tokens=cost.tokens // count, **fields)


@attrs.frozen(kw_only=True)
class FirstToken:
    """When a request's first token comes.

    Args:
        beside: Rows that decode meanwhile.
        pieces: Tokens of each piece in which the prompt is read.
        waits_s: Time at most until the request is at work: calls that were started before.
        cost: From there to the token: pieces, and between two of them a token of each decoding row.
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
        context: Tokens of every row in caches while it decodes.
        max_num_seqs: Rows of the engine.
        max_num_batched_tokens: Tokens of prompts that a step reads at most.
        num_decode_steps: Tokens that a call samples for each row while no prompt is read.
        page_size: Tokens of a page; None where caches have no pages.
        num_pages: Pages that the engine takes there.
        num_programs: Programs that the engine compiles.
        num_compiled: Those of them that were compiled for this report.
        compile_s: Seconds that lowering and compiling took here.
        capacity_bytes: What programs can have of a device; None where it is not known.
        weight_bytes: The weights.
        drawing_bytes: Of each slot's sampling settings, and tokens that penalties count.
        program_bytes: All programs of the engine; see `program_bytes` in `measure`.
        temporaries_bytes: The most that one of them allocates while it runs.
        page_bytes: A page of the caches, in all layers.
        row_bytes: Bytes that caches add for each row.
        first: Times to the first token after a prompt, by the number of rows that decode meanwhile.
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
        """What is left in addition to all that the engine has; below 0 it does not fit."""
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
        """Return the report as JSON, with all that follows from its fields."""
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
    """Return the report that `to_json` wrote."""
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


@attrs.frozen(kw_only=True)
class ServingLoad:
    """An engine, and the texts that times are reported for.

    Args:
        engine: Its config, with `max_length`: so many tokens of each row are in caches.
        prompt: Tokens of a prompt.
        sampling: How tokens are sampled; by default the likeliest.
    """

    engine: EngineConfig
    prompt: int = 512
    sampling: Sampling = attrs.field(factory=lambda: Sampling(temperature=0.0))

    def __attrs_post_init__(self) -> None:
        """Check that times can be reported.

        Raises:
            ConfigError: The prompt does not fit, or the engine uses speculative decoding.
        """
        context = self.engine.max_length
        if context is None or not 1 <= self.prompt < context:
            raise ConfigError(
                f"a prompt of {self.prompt} tokens and one sampled token do not fit a context of "
                f"{context}",
                where="prompt",
                hint="--prompt or --context changes them",
            )
        if self.engine.speculation is not None:
            raise ConfigError(
                "how many draft tokens are accepted is not known before a model runs",
                where="engine.speculation",
                hint="leave it out, and measure speculation where the model runs",
            )

    @property
    def context(self) -> int:
        """Tokens of every row in caches while it decodes."""
        assert self.engine.max_length is not None
        return self.engine.max_length
