"""The report of training on rollouts: one memory plan for trainer and engine, times by phase.

Trainer and engine share the devices of one mesh. A rollout is a cycle of phases: the engine takes
the weights of the step (`weights`), reads prompts, and samples tokens; the trainer computes the old
log-probabilities, where batches may be trained on by newer weights, and takes its steps. Bytes are
those of one device.
"""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import attrs
import jax
import jax.numpy as jnp

from axcore.aot.cost.measure import NO_MEMORY, analyse, measure_step, total_s, trainer_for
from axcore.aot.cost.memory import bytes_on_a_device, needed_bytes
from axcore.aot.hlo.loops import unknown_loops
from axcore.aot.hlo.program import parse_program
from axcore.aot.report.report import Report, no_times, report_from_json, show_bytes, show_seconds
from axcore.aot.report.text import verdict_of
from axcore.aot.serving.measure import MeasuredPrograms, ServingPrograms, memory_s, program_bytes
from axcore.aot.serving.report import CallCost, ServingLoad
from axcore.config.json_files import parse_json
from axcore.data import Policy
from axcore.errors import AotError, ConfigError
from axcore.inference import EngineConfig
from axcore.ops import recording_plan
from axcore.plugins import AotTarget, wanted_compiler_options
from axcore.report.table import columns
from axcore.trainer import ResolvedConfig

WEIGHTS, PROMPTS, TOKENS, OLD_LOG_PROBS, STEPS = (
    "weights",
    "prompts",
    "tokens",
    "old log-probs",
    "train steps",
)
"""Names of phases. There may be two of tokens: the last rows may be fewer."""

_SAMPLING = (WEIGHTS, PROMPTS, TOKENS)


@runtime_checkable
class SamplesRollouts(Protocol):
    """A data loader whose batches the policy samples, as `axcore.rollouts.Rollouts`."""

    config: Any

    @property
    def engine_config(self) -> EngineConfig:
        """The engine that samples."""

    @property
    def has_records(self) -> bool:
        """Whether the task records log-probabilities and more of what was sampled."""

    def record_state(self, state: Any, kept: Any) -> Any:
        """Return what the program reads of a model's state, and of what the task keeps."""

    def jitted_record(self, policy: Policy) -> Callable[..., Any]:
        """Return the program that computes them: `(state, batch)`."""


@attrs.frozen(kw_only=True)
class Phase:
    """Calls of a rollout, one after the other.

    Args:
        name: What they do; see the constants of this module.
        rows: Rows of a call.
        calls: How many there are in a rollout.
        call_s: What one takes; None where it is not known.
        temporaries_bytes: What one allocates while it runs, its batch and results included.
        refusal: What the compiler said, where it refused the program for lack of memory.
    """

    name: str
    rows: int
    calls: int
    call_s: float | None
    temporaries_bytes: int
    refusal: str = ""

    @property
    def seconds(self) -> float | None:
        """What all of them take."""
        return None if self.call_s is None else self.calls * self.call_s


@attrs.frozen(kw_only=True)
class RolloutMemory:
    """What a device holds from the first rollout on, whichever phase runs.

    Args:
        capacity_bytes: What programs can have of a device; None where it is not known.
        parameters_bytes: The policy.
        optimizer_bytes: The optimizer's state.
        frozen_bytes: Models of the task that are not trained, such as the reference of a penalty.
        copies_bytes: Copies of the policy, of rollouts that are sampled ahead.
        weight_bytes: Weights of the engine that it does not share with the policy.
        shared_bytes: Weights that it shares; counted with the policy.
        cache_bytes: Caches of the engine.
        sampling_bytes: Sampling settings of its slots.
        program_bytes: All programs of trainer and engine.
    """

    capacity_bytes: int | None
    parameters_bytes: int
    optimizer_bytes: int
    frozen_bytes: int
    copies_bytes: int
    weight_bytes: int
    shared_bytes: int
    cache_bytes: int
    sampling_bytes: int
    program_bytes: int

    @property
    def resident_bytes(self) -> int:
        """All of it together."""
        not_held = ("capacity_bytes", "shared_bytes")
        fields = attrs.asdict(self, filter=lambda field, _: field.name not in not_held)
        return sum(fields.values())


@attrs.frozen(kw_only=True)
class RolloutReport:
    """The report of training on rollouts, on one target.

    Args:
        train: The report of the train step.
        prompts: Prompts of a rollout.
        group_size: Completions of each.
        prompt: Tokens of every prompt.
        new_tokens: Tokens of every completion.
        steps: Train steps on a rollout.
        max_lag: Rollouts that are sampled ahead of the step that trains on them.
        max_num_seqs: Rows of the engine.
        rows: Those of them that decode at once: completions, and full texts that pages hold.
        page_size: Tokens of a page; None where caches have no pages.
        num_pages: Pages that the engine takes.
        page_bytes: A page of the caches, in all layers.
        memory: What is resident.
        phases: Of a rollout, in their order.
        remarks: What the figures leave out for this config and target.
        kernels: Which kernel serves each op of the engine, and why.
        compile_s: Seconds that compiling took here, the train step not counted.
    """

    train: Report
    prompts: int
    group_size: int
    prompt: int
    new_tokens: int
    steps: int
    max_lag: int
    max_num_seqs: int
    rows: int
    page_size: int | None
    num_pages: int | None
    page_bytes: int
    memory: RolloutMemory
    phases: tuple[Phase, ...]
    remarks: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    compile_s: float

    @property
    def temporaries_bytes(self) -> int:
        """The most that phases allocate at once."""
        sampling = max(one.temporaries_bytes for one in self.phases if one.name in _SAMPLING)
        training = max(one.temporaries_bytes for one in self.phases if one.name not in _SAMPLING)
        # What is sampled ahead is sampled while steps run.
        return sampling + training if self.max_lag else max(sampling, training)

    @property
    def peak_bytes(self) -> int:
        """What is resident, and the temporaries."""
        return self.memory.resident_bytes + self.temporaries_bytes

    @property
    def fits(self) -> bool | None:
        """Whether all of it fits a device; None where its memory is not known."""
        capacity = self.memory.capacity_bytes
        if self.train.refusal or any(one.refusal for one in self.phases):
            return False
        return None if capacity is None else self.peak_bytes <= capacity

    @property
    def pages_that_fit(self) -> int | None:
        """Pages that memory holds; None where caches grow by no token, or nobody knows."""
        capacity = self.memory.capacity_bytes
        if capacity is None or not self.page_bytes or self.num_pages is None:
            return None
        return max(0, self.num_pages + (capacity - self.peak_bytes) // self.page_bytes)

    @property
    def num_tokens(self) -> int:
        """Sampled tokens of a rollout."""
        return self.prompts * self.group_size * self.new_tokens

    @property
    def sampling_s(self) -> float | None:
        """What the engine takes for a rollout."""
        return total_s(one.seconds for one in self.phases if one.name in _SAMPLING)

    @property
    def rollout_s(self) -> float | None:
        """What a rollout takes, with the steps that train on it."""
        return total_s(one.seconds for one in self.phases)

    @property
    def step_s(self) -> float | None:
        """What a train step takes, with its share of the rollout."""
        return None if self.rollout_s is None else self.rollout_s / self.steps

    @property
    def chip_hours_per_step(self) -> float | None:
        """Chip-hours of a step: what a price of chips is multiplied by."""
        return None if self.step_s is None else self.step_s * self.train.chips / 3600

    @property
    def chip_hours_per_million_tokens(self) -> float | None:
        """Chip-hours of a million sampled tokens, training not counted."""
        if self.sampling_s is None:
            return None
        return self.sampling_s * self.train.chips / 3600 / self.num_tokens * 1e6

    def to_json(self) -> str:
        """Return the report as JSON, with what follows from its fields."""
        fields = attrs.asdict(self)
        fields["train"] = parse_json(self.train.to_json())
        fields["memory"]["resident_bytes"] = self.memory.resident_bytes
        for one, phase in zip(fields["phases"], self.phases, strict=True):
            one["seconds"] = phase.seconds
        fields |= {name: getattr(self, name) for name in _OF_REPORT}
        return json.dumps(fields, indent=2)


_OF_REPORT = (
    "temporaries_bytes",
    "peak_bytes",
    "fits",
    "pages_that_fit",
    "num_tokens",
    "sampling_s",
    "rollout_s",
    "step_s",
    "chip_hours_per_step",
    "chip_hours_per_million_tokens",
)


def rollout_report_from_json(text: str) -> RolloutReport:
    """Return the report that `to_json` wrote."""
    fields: dict[str, Any] = parse_json(text)
    for name in _OF_REPORT:
        del fields[name]
    memory, phases = fields.pop("memory"), fields.pop("phases")
    for one, name in ((memory, "resident_bytes"), *((one, "seconds") for one in phases)):
        del one[name]
    return RolloutReport(
        train=report_from_json(json.dumps(fields.pop("train"))),
        memory=RolloutMemory(**memory),
        phases=tuple(Phase(**one) for one in phases),
        remarks=tuple(fields.pop("remarks")),
        kernels=tuple(fields.pop("kernels")),
        **fields,
    )


def measure_rollouts(
    resolved: ResolvedConfig, target: AotTarget, *, experiment: str, prompt: int | None = None
) -> RolloutReport:
    """Return the report of a config that trains on rollouts, compiled here.

    Args:
        resolved: The trainer's config, and the hardware that it is for.
        target: How to compile for it.
        experiment: Its name in the report.
        prompt: Tokens of every prompt; None takes the longest that a row holds.

    Raises:
        ConfigError: The config has no rollouts, or no row holds such a prompt.
        AxcoreError: The config does not fit the hardware.
    """
    trainer = trainer_for(resolved, target)
    data = trainer.data
    if not isinstance(data, SamplesRollouts):
        raise ConfigError(
            f"{experiment} has no rollouts: its batches are of {type(data).__qualname__}",
            where="data",
            hint="leave --rollouts out, or name an experiment that learns from rewards, as "
            "grpo-reverse",
        )
    return _RolloutMeasurement(trainer, data, target, experiment, prompt).report()


class _RolloutMeasurement:
    """The programs of trainer and engine on the trainer's mesh."""

    def __init__(
        self,
        trainer: Any,
        data: SamplesRollouts,
        target: AotTarget,
        experiment: str,
        prompt: int | None,
    ) -> None:
        cfg = data.config
        longest = cfg.seq_len + 1 - cfg.max_new_tokens
        if prompt is not None and prompt > longest:
            raise ConfigError(
                f"a prompt of {prompt} tokens and {cfg.max_new_tokens} sampled ones do not fit a "
                f"row of {cfg.seq_len}",
                where="data.seq_len",
                hint=f"--prompt {longest}, or --set data.seq_len={prompt + cfg.max_new_tokens - 1}",
            )
        self._trainer, self._data, self._target = trainer, data, target
        self._experiment, self._prompt = experiment, prompt or longest
        state = trainer.compiler.abstract_state()
        self._policy_state = trainer.step.own_part(state.model)
        kept = trainer.step.kept_part(state.model)
        self._record_state = data.record_state(self._policy_state, kept)
        policy_bytes = bytes_on_a_device(self._policy_state)
        num_copies = cfg.max_lag + 1 if cfg.max_lag else 0
        self._held = {
            "parameters_bytes": policy_bytes,
            "optimizer_bytes": bytes_on_a_device(state.opt_state),
            "frozen_bytes": bytes_on_a_device(state.model) - policy_bytes,
            "copies_bytes": num_copies * bytes_on_a_device(self._record_state),
        }
        self._compile_s = 0.0

    def report(self) -> RolloutReport:
        """Compile, and return the report."""
        trainer, cfg = self._trainer, self._data.config
        train = measure_step(trainer, self._target, experiment=self._experiment)
        if train.memory is None:
            raise AotError(train.refusal, where=f"train step on {train.target}")
        engine = ServingPrograms(
            trainer.config,
            trainer.hardware,
            trainer.mesh.devices.flat,
            ServingLoad(
                engine=self._data.engine_config, prompt=self._prompt, sampling=cfg.sampling
            ),
            mesh=trainer.mesh,
            held_bytes=sum(self._held.values()),
        )
        measured = MeasuredPrograms(engine)
        shared = self._shared_paths(engine)
        shared_bytes = sum(map(bytes_on_a_device, shared.values()))
        pages, (_, page_bytes) = engine.cache_config.pages, engine.cache_bytes()
        completions = cfg.batches_per_rollout * cfg.batch_size
        rows = min(completions, engine.load.engine.max_num_seqs)
        if pages is not None:
            # As if no prompt were shared; a row that gets no page waits.
            rows = min(rows, max(1, pages.num_pages // engine.pages_of_row))
        weights, weights_program = self._weights(engine, shared)
        sampling = self._sampling(engine, measured, completions, rows)
        old, old_program = self._old_log_probs()
        memory = train.memory
        steps = cfg.batches_per_rollout * cfg.epochs_per_rollout
        step = Phase(
            name=STEPS,
            rows=trainer.batch_spec.num_rows,
            calls=steps,
            call_s=train.time.step_s if train.time else None,
            temporaries_bytes=memory.batch_bytes + memory.temporaries_bytes,
            refusal=train.refusal,
        )
        programs = (
            program_bytes(engine.keys, measured.costs),
            weights_program,
            old_program,
            memory.program_bytes,
        )
        return RolloutReport(
            train=train,
            prompts=completions // cfg.group_size,
            group_size=cfg.group_size,
            prompt=self._prompt,
            new_tokens=cfg.max_new_tokens,
            steps=steps,
            max_lag=cfg.max_lag,
            max_num_seqs=engine.load.engine.max_num_seqs,
            rows=rows,
            page_size=None if pages is None else pages.page_size,
            num_pages=None if pages is None else pages.num_pages,
            page_bytes=page_bytes,
            memory=RolloutMemory(
                **self._held,
                capacity_bytes=memory.capacity_bytes,
                weight_bytes=engine.weight_bytes() - shared_bytes,
                shared_bytes=shared_bytes,
                cache_bytes=engine.all_cache_bytes(),
                sampling_bytes=engine.drawing_bytes(),
                program_bytes=sum(programs),
            ),
            phases=(weights, *sampling, *old, step),
            remarks=tuple(self._remarks()),
            kernels=tuple(measured.plans),
            compile_s=round(self._compile_s + measured.compile_s, 3),
        )

    def _shared_paths(self, engine: ServingPrograms) -> dict[Any, Any]:
        """Return the engine's arrays that are the policy's own, by their paths.

        An array is shared that has the type and the place that the engine reads, and is copied
        otherwise; see `WeightConversion.traced_arrays`.
        """
        trained = dict(jax.tree_util.tree_leaves_with_path(self._policy_state))
        return {
            path: leaf
            for path, leaf in jax.tree_util.tree_leaves_with_path(engine.conversion.abstract)
            if path in trained and _is_same(trained[path], leaf)
        }

    def _weights(self, engine: ServingPrograms, shared: dict[Any, Any]) -> tuple[Phase, int]:
        """Return what it takes until the engine has the weights of a step.

        The engine takes array after array; that is timed as one program that makes all of them.
        """
        known = {tuple(step.key for step in path) for path in shared}

        def taken(state: Any) -> dict[str, Any]:
            arrays = engine.conversion.traced_arrays(state)
            return {".".join(path): array for path, array in arrays if path not in known}

        is_shared = engine.weight_bytes() == sum(map(bytes_on_a_device, shared.values()))
        found = _ProgramCost(seconds=0.0)
        if not is_shared:
            found = self._compiled(lambda: jax.jit(taken).lower(self._policy_state))
        phase = Phase(
            name=WEIGHTS,
            rows=0,
            calls=1,
            call_s=found.seconds,
            temporaries_bytes=0 if is_shared else engine.conversion.replacement_bytes,
        )
        return phase, found.program_bytes

    def _sampling(
        self, engine: ServingPrograms, measured: MeasuredPrograms, completions: int, rows: int
    ) -> list[Phase]:
        """Return the phases in which the engine reads prompts and samples, all rows in step."""
        cfg = self._data.config
        is_shared = engine.enable_prefix_caching
        reads = completions // cfg.group_size if is_shared else completions
        found = [_phase(PROMPTS, 1, reads, measured.first_token(0, {}).cost)]
        # The first token of a completion is sampled where its prompt ends.
        count = cfg.max_new_tokens - 1
        for some, waves in ((rows, completions // rows), (completions % rows, 1)):
            if some and count:
                bucket = min(size for size in engine.decode_buckets if size >= some)
                found.append(_phase(TOKENS, bucket, waves * count, measured.token(bucket)))
        return found

    def _old_log_probs(self) -> tuple[list[Phase], int]:
        trainer, data = self._trainer, self._data
        if not data.has_records:
            return [], 0
        shape = trainer.batch_spec.num_rows, data.config.seq_len
        dtypes = {"tokens": jnp.int32, "targets": jnp.int32, "token_mask": jnp.bool_}
        batch = {name: jax.ShapeDtypeStruct(shape, one) for name, one in dtypes.items()}  # type: ignore[no-untyped-call]
        program = data.jitted_record(Policy(trainer.model, jit=trainer.compiler.jitted_policy))
        found = self._compiled(lambda: program.lower(self._record_state, batch))  # type: ignore[attr-defined]
        phase = Phase(
            name=OLD_LOG_PROBS,
            rows=shape[0],
            calls=data.config.batches_per_rollout,
            call_s=found.seconds,
            temporaries_bytes=found.temporaries_bytes,
            refusal=found.refusal,
        )
        return [phase], found.program_bytes

    def _compiled(self, lower: Callable[[], Any]) -> "_ProgramCost":
        """Return what a program of the trainer costs, lowered for its mesh."""
        hardware = self._trainer.hardware
        started = time.perf_counter()
        with jax.set_mesh(self._trainer.mesh), recording_plan() as recording:
            lowered = lower()
        options = dict(wanted_compiler_options(hardware)) or None
        try:
            compiled = lowered.compile(compiler_options=options)
        except jax.errors.JaxRuntimeError as error:
            if NO_MEMORY not in str(error):
                raise
            refusal = str(error).splitlines()[0]
            held = bytes_on_a_device(self._record_state)
            needed = max(0, (needed_bytes(refusal) or 0) - held)
            return _ProgramCost(temporaries_bytes=needed, refusal=refusal)
        finally:
            self._compile_s += time.perf_counter() - started
        program, stats = parse_program(compiled.as_text()), compiled.memory_analysis()
        analysis = analyse(program, hardware, recording.plan().choices)
        waiting = None if analysis.waits_s is None else sum(analysis.waits_s)
        written_s = total_s((analysis.compute_s, analysis.kernels_s, waiting))
        moved_s = memory_s(sum(one.nbytes for one in analysis.costs), hardware)
        known = written_s is not None and moved_s is not None and not unknown_loops(program)
        arguments = stats.argument_size_in_bytes - bytes_on_a_device(self._record_state)
        return _ProgramCost(
            seconds=max(written_s or 0.0, moved_s or 0.0) if known else None,
            temporaries_bytes=stats.temp_size_in_bytes
            + stats.output_size_in_bytes
            + max(0, arguments),
            program_bytes=stats.generated_code_size_in_bytes,
        )

    def _remarks(self) -> Iterator[str]:
        hardware, cfg = self._trainer.hardware, self._data.config
        if hardware.num_hosts > 1:
            yield (
                f"{hardware.name} has {hardware.num_hosts} hosts, and rollouts are sampled in one "
                "process: a run there is refused today"
            )
        if cfg.max_sampling_rounds > 1:
            yield "groups that are asked again, by data.max_sampling_rounds, are not counted"
        if getattr(cfg, "environment", None) is not None:
            yield "the environment's own time is not counted, and its replies as sampled tokens"


@attrs.frozen(kw_only=True)
class _ProgramCost:
    seconds: float | None = None
    temporaries_bytes: int = 0
    program_bytes: int = 0
    refusal: str = ""


def _phase(name: str, rows: int, calls: int, cost: CallCost) -> Phase:
    return Phase(
        name=name,
        rows=rows,
        calls=calls,
        call_s=cost.seconds,
        temporaries_bytes=cost.temporaries_bytes,
    )


def _is_same(trained: Any, served: Any) -> bool:
    return bool(
        (trained.shape, trained.dtype) == (served.shape, served.dtype)
        and trained.sharding.is_equivalent_to(served.sharding, len(served.shape))
    )


def rollout_text(report: RolloutReport, price: float | None = None) -> str:
    """Return the report as lines of text.

    Args:
        report: The report.
        price: Of a chip for an hour, as the reader's contract has it.
    """
    parts = (_head(report), _memory(report), _times(report), _costs(report, price))
    lines = [line.rstrip() for part in parts for line in part]
    return "\n".join([*lines, *(f"note      {one}" for one in report.remarks)])


def _head(report: RolloutReport) -> Iterator[str]:
    train = report.train
    mesh = " x ".join(f"{name} {size}" for name, size in train.mesh.items()) or "1 device"
    capacity = report.memory.capacity_bytes
    yield f"{train.experiment} with rollouts on {train.target}: " + verdict_of(
        report.peak_bytes, capacity, fits=report.fits
    )
    yield ""
    yield f"mesh      {mesh}, {train.chips} chips, of trainer and engine"
    yield (
        f"rollout   {report.prompts:,} prompts of {report.prompt:,} tokens, {report.group_size} "
        f"completions of {report.new_tokens:,} each; {report.num_tokens:,} tokens sampled"
    )
    yield f"training  {report.steps} x {train.describe_batch()}"
    pages = "no pages" if report.num_pages is None else f"{report.num_pages:,} pages"
    if report.pages_that_fit is not None:
        pages += f", of which memory fits {report.pages_that_fit:,}" * (report.fits is False)
    yield f"engine    {report.max_num_seqs} rows, {pages}; {report.rows} rows sample at once"
    yield f"compiler  {train.compiler}"
    if train.limits:
        yield f"limits    {train.limits}"
    for one in report.phases:
        if one.refusal:
            yield f"refused   {one.name}: {one.refusal}"


def _memory(report: RolloutReport) -> Iterator[str]:
    memory = report.memory
    yield ""
    yield "memory of a device"
    parts = [
        ("parameters", memory.parameters_bytes),
        ("  shared with the engine", memory.shared_bytes),
        ("optimizer state", memory.optimizer_bytes),
        ("frozen models", memory.frozen_bytes),
        ("policies of rollouts ahead", memory.copies_bytes),
        ("weights of the engine", memory.weight_bytes),
        ("caches of the engine", memory.cache_bytes),
        ("sampling settings", memory.sampling_bytes),
        ("programs", memory.program_bytes),
        ("resident", memory.resident_bytes),
        ("temporaries" + " of both" * bool(report.max_lag), report.temporaries_bytes),
        ("at once", report.peak_bytes),
        ("of", memory.capacity_bytes or 0),
    ]
    for name, nbytes in parts:
        if nbytes:
            yield f"  {name:<32}{show_bytes(nbytes):>10}"


def _times(report: RolloutReport) -> Iterator[str]:
    total = report.rollout_s
    yield ""
    rows = [
        (
            one.name,
            str(one.rows or ""),
            f"{one.calls:,}",
            show_bytes(one.temporaries_bytes),
            *(() if total is None else _shown_times(one, total)),
        )
        for one in report.phases
    ]
    header = ("PHASE", "ROWS", "CALLS", "TEMPORARIES")
    yield columns(header if total is None else (*header, "EACH", "ALL", "SHARE"), rows)


def _shown_times(one: Phase, total: float) -> tuple[str, ...]:
    share = "" if one.seconds is None else f"{100 * one.seconds / total:.1f} %"
    return show_seconds(one.call_s), show_seconds(one.seconds), share


def _costs(report: RolloutReport, price: float | None) -> Iterator[str]:
    yield ""
    if report.step_s is None or report.sampling_s is None:
        yield no_times(report.train.target)
        return
    rate = report.num_tokens / report.sampling_s
    yield f"predicted step {show_seconds(report.step_s)}; {rate:,.0f} tokens/s while it samples"
    for name, hours in (
        ("a step", report.chip_hours_per_step),
        ("a million sampled tokens", report.chip_hours_per_million_tokens),
    ):
        assert hours is not None
        cost = "" if price is None else f", {hours * price:.3g} at {price:g} for a chip-hour"
        yield f"  {name:<26}{hours:.3g} chip-hours{cost}"
