"""What the core itself brings, through the same hooks as everybody, under the name `core`.

References are strings: nothing here is imported until it is used. To add a record of the core,
add a line to the hook it belongs to.
"""

from collections.abc import Iterator
from typing import Any

from axcore.hardware.hardware import Hardware
from axcore.hardware.predicates import requires
from axcore.plugins.records import (
    AdapterFormat,
    AotTarget,
    CheckpointStorage,
    Command,
    DataSource,
    DataTokenizer,
    DataTransform,
    DoctorCheck,
    EnvironmentFlags,
    EvaluationTask,
    Experiment,
    Feature,
    HardwareFamily,
    HuggingFaceFamily,
    JobLauncher,
    Kernel,
    MeshRule,
    MetricWriter,
    Modifier,
    Op,
    QuantizationScheme,
    RopeScaling,
    RunObserver,
    TrainingTask,
    hook,
)
from axcore.registration.ref import Ref


@hook.hardware_families
def hardware_families() -> Iterator[HardwareFamily]:
    """Any machine without an accelerator; `cpu-8` is 8 JAX devices in one process."""
    yield HardwareFamily(
        name="cpu",
        hosts=(Hardware(family="cpu", features={"int8"}),),
        detect=Ref("axcore.hardware.host_platform:detect_cpu"),
        summary="Host processors, or devices that XLA fakes on them",
        is_one_host=True,
    )


@hook.environment_flags
def environment_flags() -> Iterator[EnvironmentFlags]:
    """As many devices on the host's processors as a target names."""
    yield EnvironmentFlags(
        name="cpu_devices",
        variable="XLA_FLAGS",
        requires=requires(family="cpu"),
        fn=Ref("axcore.hardware.host_platform:device_count_flag"),
        summary="XLA shows the host's processors as several devices",
    )


@hook.aot_targets
def aot_targets() -> Iterator[AotTarget]:
    """The host's processors, as many as a target names."""
    yield AotTarget(
        name="host",
        requires=requires(family="cpu"),
        summary="XLA's compiler for the host's processors",
    )


@hook.mesh_rules
def mesh_rules() -> Iterator[MeshRule]:
    """Fully sharded over whatever devices there are."""
    yield MeshRule(match="cpu-*", mesh={"fsdp": -1})


@hook.ops
def ops() -> Iterator[Op]:
    """What the core's layers ask for."""
    yield Op(
        name="attention",
        fn=Ref("axcore.ops:attention"),
        summary="Scaled dot-product attention with masks, caps, sinks and dropout",
        contract=Ref("axcore.testing.contracts:ATTENTION"),
        arg_spec=Ref("axcore.ops.attention.contract:arg_spec"),
    )
    yield Op(
        name="decode_attention",
        fn=Ref("axcore.ops:decode_attention"),
        summary="Attention of the newest tokens over a cache, contiguous or in pages",
        contract=Ref("axcore.testing.decode_attention_contract:DECODE_ATTENTION"),
        arg_spec=Ref("axcore.ops.decode_attention.contract:arg_spec"),
    )
    yield Op(
        name="decode_matmul",
        fn=Ref("axcore.ops:decode_matmul"),
        summary="A few rows times a weight, wide or kept narrow",
        contract=Ref("axcore.testing.decode_matmul_contract:DECODE_MATMUL"),
        arg_spec=Ref("axcore.ops.decode_matmul.contract:arg_spec"),
    )
    yield Op(
        name="cross_entropy",
        fn=Ref("axcore.ops:cross_entropy"),
        summary="Next-token loss without the whole logits in memory",
        contract=Ref("axcore.testing.contracts:CROSS_ENTROPY"),
        arg_spec=Ref("axcore.ops.cross_entropy.contract:arg_spec"),
    )
    yield Op(
        name="rms_norm",
        fn=Ref("axcore.ops:rms_norm"),
        summary="Normalisation by the root of the mean square",
        contract=Ref("axcore.testing.rms_norm_contract:RMS_NORM"),
        arg_spec=Ref("axcore.ops.rms_norm.contract:arg_spec"),
    )
    yield Op(
        name="rope",
        fn=Ref("axcore.ops:rope"),
        summary="Rotary positions: pairs of a head's dimensions, rotated",
        contract=Ref("axcore.testing.rope_contract:ROPE"),
        arg_spec=Ref("axcore.ops.rope.contract:arg_spec"),
    )
    yield Op(
        name="grouped_matmul",
        fn=Ref("axcore.ops:grouped_matmul"),
        summary="Rows sorted by group, each group with a matrix of its own",
        contract=Ref("axcore.testing.grouped_matmul_contract:GROUPED_MATMUL"),
        arg_spec=Ref("axcore.ops.grouped_matmul.contract:arg_spec"),
    )
    yield Op(
        name="quantized_dot",
        fn=Ref("axcore.ops:quantized_dot"),
        summary="Products of int8 or float8 operands, and those of its gradients",
        contract=Ref("axcore.testing.quantized_dot_contract:QUANTIZED_DOT"),
    )
    for name, module in (
        ("attention", "contracts"),
        ("cross_entropy", "contracts"),
        ("rms_norm", "rms_norm_contract"),
        ("grouped_matmul", "grouped_matmul_contract"),
    ):
        yield Op(
            name=f"{name}_backward",
            fn=Ref(f"axcore.ops.{name}.op:{name}_custom_vjp"),
            summary=f"The gradient of {name}, for kernels that JAX does not differentiate",
            contract=Ref(f"axcore.testing.{module}:{name.upper()}_BACKWARD"),
            arg_spec=Ref(f"axcore.ops.{name}.contract:backward_arg_spec"),
        )


@hook.kernels
def kernels() -> Iterator[Kernel]:
    """What serves every platform, and the references that define what the ops mean."""
    in_jnp: dict[str, Any] = {"is_differentiable": True, "partitioned_by": "compiler"}
    for op, summary in (
        ("attention", "Chunks with an online softmax; memory linear in the length"),
        ("cross_entropy", "Chunks of tokens and of the vocabulary"),
        ("rms_norm", "Plain JAX, which compilers fuse into what surrounds it"),
    ):
        forward = Ref(f"axcore.ops.{op}.kernels:{op}_portable")
        yield Kernel(
            op=op, name="portable", priority=50, forward=forward, summary=summary, **in_jnp
        )
    yield Kernel(
        op="decode_attention",
        name="portable",
        summary="Contiguous and paged caches, in blocks of keys",
        priority=50,
        validated_on=("cpu",),
        forward=Ref("axcore.ops.decode_attention.kernels:decode_attention_portable"),
        block_sizes=Ref("axcore.ops.decode_attention.kernels:BLOCK_SIZES"),
        **in_jnp,
    )
    yield Kernel(
        op="decode_matmul",
        name="portable",
        summary="Plain JAX; a narrow weight is made wide in the product",
        priority=50,
        validated_on=("*",),  # XLA's own products
        forward=Ref("axcore.ops.decode_matmul.kernels:decode_matmul_portable"),
        **in_jnp,
    )
    for op in (
        "attention",
        "decode_attention",
        "decode_matmul",
        "cross_entropy",
        "rms_norm",
        "rope",
        "grouped_matmul",
    ):
        forward = Ref(f"axcore.ops.{op}.kernels:{op}_reference")
        summary = "What the op means, in float32"
        yield Kernel(
            op=op, name="reference", priority=0, forward=forward, summary=summary, **in_jnp
        )
    yield Kernel(
        op="rope",
        name="portable",
        summary="Plain JAX, which compilers fuse into what surrounds it",
        priority=50,
        validated_on=("*",),
        forward=Ref("axcore.ops.rope.kernels:rope_portable"),
        **in_jnp,
    )
    yield Kernel(
        op="attention",
        name="blockwise",
        summary="Blocks with an online softmax",
        priority=50,
        pinned_only="a part of the portable kernel, kept for comparison",
        forward=Ref("axcore.ops.attention.blockwise:blockwise_forward"),
        partitioned_by="compiler",
    )
    for op, target, summary in (
        ("attention", "blockwise:blockwise_backward", "from the output and its log-sum-exp"),
        ("cross_entropy", "kernels:cross_entropy_portable_backward", "in chunks of tokens"),
        ("rms_norm", "kernels:rms_norm_portable_backward", "from the inputs"),
    ):
        yield Kernel(
            op=f"{op}_backward",
            name="portable",
            summary=f"Gradients {summary}",
            priority=50,
            forward=Ref(f"axcore.ops.{op}.{target}"),
            partitioned_by="compiler",
        )
    yield Kernel(
        op="grouped_matmul",
        name="portable",
        summary="Blocks of rows, padded by group",
        priority=50,
        forward=Ref("axcore.ops.grouped_matmul.kernels:grouped_matmul_portable"),
        backward=Ref("axcore.ops.grouped_matmul.kernels:grouped_matmul_portable_backward"),
        partitioned_by="compiler",
        block_sizes=Ref("axcore.ops.grouped_matmul.kernels:BLOCK_SIZES"),
    )
    narrow = "axcore.ops.quantized.kernels"
    for name in ("int8", "float8"):
        yield Kernel(
            op="quantized_dot",
            name=name,
            summary="XLA's own product of the format",
            priority=50,
            validated_on=("*",),  # XLA's own product, run wherever hardware has the format
            requires=requires(features=name),
            unsupported_reason=Ref(f"{narrow}:{name}_unsupported_reason"),
            forward=Ref(f"{narrow}:{name}_matmul"),
            partitioned_by="compiler",
        )
    yield Kernel(
        op="quantized_dot",
        name="emulated",
        summary="Any format, in float32",
        priority=0,
        forward=Ref(f"{narrow}:emulated_matmul"),
        partitioned_by="compiler",
    )


@hook.modifiers
def modifiers() -> Iterator[Modifier]:
    """Changes that any experiment can be asked to make."""
    for name, config, summary in (
        ("accumulate", "Accumulate", "Batches in more parts: less memory, same result"),
        ("micro_batches", "MicroBatches", "Batches in parts of so many rows a device"),
        ("remat", "RematModifier", "Layers' values computed again in the backward pass, by preset"),
        ("mesh_shape", "MeshShape", "Devices in another mesh"),
        ("pipelined", "Pipelined", "Layers in stages, over the mesh axis `pipeline`"),
        ("zero2", "Zero2", "Parameters whole; gradients and optimizer state split, as ZeRO-2"),
        ("shard", "Shard", "Dimensions split along other mesh axes, by their logical names"),
        ("pretrained", "Pretrained", "A run begins with the weights of a published model"),
        ("lora", "LoRA", "Small corrections of linear layers trained, and nothing else"),
        ("quantized_base", "QuantizedBase", "What adapters correct kept in NF4 or int8, as QLoRA"),
        ("low_precision_optimizer", "LowPrecisionOptimizer", "Optimizer state in 8 or 16 bits"),
        ("kernels", "Kernels", "Kernels pinned by op, and portable ones allowed"),
        ("replace", "ReplaceConfig", "Another layer in the place of every layer of a class"),
        ("update", "UpdateConfig", "Values by path or glob"),
    ):
        ref = Ref(f"axcore.modifiers:{config}")
        yield Modifier(name=name, config=ref, summary=summary)
    yield Modifier(
        name="evaluate",
        config=Ref("axcore.evaluation:Evaluate"),
        summary="Tasks evaluated every n steps of training",
    )
    yield Modifier(
        name="from_run",
        config=Ref("axcore.runs:FromRun"),
        summary="A run begins with the weights of another run",
    )
    yield Modifier(
        name="draw_samples",
        config=Ref("axcore.runs:DrawSamples"),
        summary="Text drawn at each evaluation, and kept with the run",
    )
    for name, config, summary in (
        ("rename_weights", "RenameWeights", "First weights under other names"),
        ("grow_vocabulary", "GrowVocabulary", "First weights for more tokens"),
        ("extend_positions", "ExtendPositions", "First weights for more learned positions"),
        ("upcycle", "Upcycle", "First weights of experts from a feed-forward"),
        ("stack_depth", "StackDepth", "First weights of more layers, or of some of them"),
    ):
        yield Modifier(name=name, config=Ref(f"axcore.interop:{config}"), summary=summary)
    yield Modifier(
        name="int8_training",
        config=Ref("axcore.modifiers:Int8Training"),
        summary="Linear layers multiply in int8, forward and backward",
    )
    yield Modifier(
        name="fp8_training",
        config=Ref("axcore.modifiers:Fp8Training"),
        summary="Linear layers multiply in float8, forward and backward",
    )
    yield Modifier(
        name="sliding_cache",
        config=Ref("axcore.modifiers:SlidingCaches"),
        summary="Of attention with a window, serving keeps no more than the window",
    )
    yield Modifier(
        name="half_cache",
        config=Ref("axcore.modifiers:HalfCaches"),
        summary="Serving keeps keys and values in float16 or bfloat16",
    )
    yield Modifier(
        name="quantized_cache",
        config=Ref("axcore.modifiers:QuantizedCaches"),
        summary="Serving keeps keys and values in int8 or float8",
    )


@hook.quantization_schemes
def quantization_schemes() -> Iterator[QuantizationScheme]:
    """Layers' products in int8 and float8, forward and backward."""
    layers = "axcore.layers"
    yield QuantizationScheme(
        name="int8_dynamic",
        config=Ref(f"{layers}:Int8Dynamic.Config"),
        requires=requires(features="int8"),
        summary="int8 with a scale for each row of the input and column of the weight",
    )
    yield QuantizationScheme(
        name="fp8_current",
        config=Ref(f"{layers}:Fp8Current.Config"),
        requires=requires(features="float8"),
        summary="float8 with a scale per tensor, from what it holds now",
    )
    yield QuantizationScheme(
        name="fp8_delayed",
        config=Ref(f"{layers}:Fp8Delayed.Config"),
        requires=requires(features="float8"),
        summary="float8 with a scale per tensor, from what earlier steps held",
    )


@hook.data_sources
def data_sources() -> Iterator[DataSource]:
    """Where text comes from."""
    for name, config, summary in (
        ("text_files", "TextFiles", "UTF-8 files of a folder, a document each"),
        ("json_lines", "JsonLines", "Lines of JSON files, a document each"),
        ("chat_files", "ChatFiles", "Conversations, a line of JSON each; the loss is on answers"),
        ("arrow_files", "ArrowFiles", "Rows of Parquet or Arrow files, a document each"),
        ("array_record_files", "ArrayRecordFiles", "Records of ArrayRecord files, a document each"),
        ("tar_files", "TarFiles", "Samples of tar files, as WebDataset writes them"),
        ("hugging_face_dataset", "HuggingFaceDataset", "A dataset saved in a folder, or by name"),
        ("token_files", "TokenFiles", "Tokens as nanoGPT and llm.c write them"),
        ("megatron_files", "MegatronFiles", "Tokens as Megatron-LM writes them"),
        ("standard_library", "StandardLibrary", "The source of this Python's standard library"),
        ("token_store", "StoredSource", "What `axcore data build` made"),
    ):
        ref = Ref(f"axcore.data:{config}.Config")
        yield DataSource(name=name, config=ref, summary=summary)


@hook.data_transforms
def data_transforms() -> Iterator[DataTransform]:
    """What changes documents, or leaves them out."""
    for name, config, summary in (
        ("length_filter", "LengthFilter", "Documents of some length"),
        ("pattern_filter", "PatternFilter", "Documents in which a regular expression is found"),
        ("field_filter", "FieldFilter", "Documents with some value in a field"),
        ("deduplicate", "Deduplicate", "The first of equal documents"),
        ("fill_in_the_middle", "FillInTheMiddle", "Middles of documents at their ends"),
        ("span_corruption", "SpanCorruption", "Spans to write that were taken out of documents"),
        ("chat_messages", "ChatMessages", "Conversations, with loss on the answers alone"),
        ("chat_pairs", "ChatPairs", "Pairs of answers, one chosen over the other"),
        ("rated_chats", "RatedChats", "Answers that were judged one by one"),
        ("image_pixels", "ImagePixels", "Images, a token for each value of each pixel"),
    ):
        ref = Ref(f"axcore.data:{config}.Config")
        yield DataTransform(name=name, config=ref, summary=summary)


@hook.training_tasks
def training_tasks() -> Iterator[TrainingTask]:
    """What a model is trained for, besides the next token."""
    for name, config, summary in (
        ("dpo", "DPO", "Answers chosen over others, against a frozen copy"),
        ("ipo", "IPO", "Answers chosen over others by a set margin, against a frozen copy"),
        ("orpo", "ORPO", "Answers to give, and others to make less likely"),
        ("simpo", "SimPO", "Answers chosen over others by their mean log-probability"),
        ("kto", "KTO", "Answers that were judged one by one, against a frozen copy"),
    ):
        yield TrainingTask(name=name, config=Ref(f"axcore.tasks:{config}.Config"), summary=summary)


@hook.evaluation_tasks
def evaluation_tasks() -> Iterator[EvaluationTask]:
    """What models are measured by, with no download."""
    for name, function, summary in (
        ("arithmetic", "arithmetic:arithmetic", "Results of sums, written"),
        ("library_text", "standard_library:library_text", "Files of Python's library, predicted"),
        (
            "library_signatures",
            "standard_library:library_signatures",
            "Signatures of functions of Python's library, written for their docstrings",
        ),
        (
            "library_names",
            "standard_library:library_names",
            "Names that functions of Python's library return, chosen among four",
        ),
        ("hellaswag", "public:hellaswag", "HellaSwag, of a local file"),
        ("arc", "public:arc", "ARC, of a local file"),
        ("mmlu", "public:mmlu", "A subject of MMLU, of a local file"),
        ("gsm8k", "public:gsm8k", "GSM8K, of a local file"),
        ("humaneval", "public:humaneval", "HumanEval, of a local file; programs are run"),
    ):
        ref = Ref(f"axcore.evaluation.{function}")
        yield EvaluationTask(name=name, config=ref, summary=summary)


@hook.tokenizers
def tokenizers() -> Iterator[DataTokenizer]:
    """How text becomes tokens."""
    for name, config, summary in (
        ("bytes", "ByteTokenizer", "A token for each byte of UTF-8"),
        ("hugging_face", "HuggingFaceTokenizer", "Any tokenizer.json"),
        ("sentence_piece", "SentencePieceTokenizer", "Any SentencePiece tokenizer.model"),
    ):
        ref = Ref(f"axcore.data:{config}.Config")
        yield DataTokenizer(name=name, config=ref, summary=summary)


@hook.hugging_face_families
def hugging_face_families() -> Iterator[HuggingFaceFamily]:
    """Published models that the core's layers make."""
    for name, summary in (
        ("llama", "Llama 1 to 3.2, and what is published in their form"),
        ("mistral", "Mistral"),
        ("mixtral", "Mixtral"),
        ("qwen2", "Qwen2 and Qwen2.5"),
    ):
        family = Ref(f"axcore.models.hugging_face.{name}:{name.upper()}")
        yield HuggingFaceFamily(name=name, family=family, summary=summary)


@hook.adapter_formats
def adapter_formats() -> Iterator[AdapterFormat]:
    """LoRA's."""
    yield AdapterFormat(
        name="peft",
        layer=Ref("axcore.layers:LoRALinear.Config"),
        format=Ref("axcore.interop.peft:PeftFormat"),
        summary="PEFT, of Hugging Face",
    )


@hook.rope_scalings
def rope_scalings() -> Iterator[RopeScaling]:
    """Rotary positions as they were trained."""
    plain = Ref("axcore.layers:RoPE.Config")
    yield RopeScaling(name="default", config=plain, fields={}, summary="Not scaled")


@hook.metric_writers
def metric_writers() -> Iterator[MetricWriter]:
    """Where metrics go."""
    yield MetricWriter(
        name="json_lines",
        fn=Ref("axcore.trainer.callbacks.metrics:json_lines"),
        summary="metrics.jsonl in the run directory, an object a line",
    )
    for name, library, summary in (
        ("tensorboard", "tensorboardX", "event files in the run directory, for TensorBoard"),
        ("wandb", "wandb", "Weights & Biases, under the run's own id"),
        (
            "prometheus",
            "",
            "metrics.prom in the run directory: newest values, for a collector of files",
        ),
    ):
        yield MetricWriter(
            name=name,
            fn=Ref(f"axcore.trainer.callbacks.boards:{name}"),
            summary=summary,
            library=library,
        )
    yield MetricWriter(
        name="mlflow",
        fn=Ref("axcore.trainer.callbacks.mlflow_writer:mlflow"),
        summary="MLflow, on its server or as files in the run directory",
        library="mlflow",
    )


@hook.observers
def observers() -> Iterator[RunObserver]:
    """What can watch a run."""
    yield RunObserver(
        name="heartbeat",
        fn=Ref("axcore.trainer.callbacks.heartbeat:Heartbeat"),
        summary="heartbeat.json in the run directory, for a supervisor to watch",
    )
    yield RunObserver(
        name="opentelemetry",
        fn=Ref("axcore.trainer.callbacks.traces:Traces"),
        summary="Spans of the run, its steps, saves and evaluations, by OTLP",
        library="opentelemetry",
    )


@hook.checkpoint_storages
def checkpoint_storages() -> Iterator[CheckpointStorage]:
    """Where checkpoints can be kept."""
    yield CheckpointStorage(
        name="file",
        fn=Ref("axcore.checkpoint.steps:open_directory"),
        summary="A directory, which all processes share",
    )
    yield CheckpointStorage(
        name="mirror",
        fn=Ref("axcore.checkpoint.mirror:open_mirror"),
        summary="A directory on a fast disk, and a copy on a durable one",
    )
    for scheme, store in (("s3", "S3"), ("gs", "Cloud Storage"), ("az", "Blob Storage")):
        yield CheckpointStorage(
            name=scheme,
            fn=Ref(f"axcore.checkpoint.object_steps:open_{scheme}"),
            summary=f"An object store ({store}), staged on a fast disk",
        )


@hook.launchers
def launchers() -> Iterator[JobLauncher]:
    """Engines that runs can be started on."""
    yield JobLauncher(
        name="local",
        config=Ref("axcore.launch.local:Local"),
        summary="Processes on this machine, side by side",
    )
    yield JobLauncher(
        name="ray",
        config=Ref("axcore.launch.ray:Ray"),
        summary="Actors of a Ray cluster, one for each process",
    )
    for name, module, config, summary in (
        ("slurm", "slurm", "Slurm", "A script for sbatch, a process on each node"),
        ("kubernetes", "kubernetes", "Kubernetes", "A JobSet, a pod for each process"),
        ("skypilot", "skypilot", "SkyPilot", "A SkyPilot task, a node for each process"),
    ):
        yield JobLauncher(
            name=name,
            config=Ref(f"axcore.launch.{module}:{config}"),
            process_info=Ref(f"axcore.launch.{module}:{name}_process_info"),
            summary=summary,
        )


@hook.experiments
def experiments() -> Iterator[Experiment]:
    """What can be trained with the core alone."""
    yield Experiment(
        name="tiny",
        fn=Ref("axcore.experiments.tiny:tiny"),
        summary="0.9M parameters on the bytes of Python's standard library; minutes on a laptop",
    )
    for name, target, summary in (
        ("llama2-7b", "llama2:llama2_7b", "Llama 2 of 6.7B parameters; batches of 4M tokens"),
        ("llama2-70b", "llama2:llama2_70b", "Llama 2 of 69B parameters; batches of 4M tokens"),
        ("llama3-8b", "llama3:llama3_8b", "Llama 3 of 8.0B parameters; batches of 8M tokens"),
        ("llama3-70b", "llama3:llama3_70b", "Llama 3 of 70.6B parameters; batches of 8M tokens"),
        ("mistral-7b", "mistral:mistral_7b", "Mistral of 7.2B parameters; batches of 4M tokens"),
        ("mixtral-8x7b", "mistral:mixtral_8x7b", "Mixtral of 46.7B parameters, 12.9B at work"),
        ("qwen2-7b", "qwen2:qwen2_7b", "Qwen2 of 7.6B parameters; batches of 4M tokens"),
    ):
        yield Experiment(name=name, fn=Ref(f"axcore.experiments.{target}"), summary=summary)
    yield Experiment(
        name="sft",
        fn=Ref("axcore.runs.fine_tuning:sft"),
        summary="A run or a published model, trained further on conversations",
    )
    yield Experiment(
        name="dpo",
        fn=Ref("axcore.runs.fine_tuning:dpo"),
        summary="A run or a published model, trained further on answers chosen over others",
    )
    yield Experiment(
        name="kto",
        fn=Ref("axcore.runs.fine_tuning:kto"),
        summary="A run or a published model, trained further on answers judged one by one",
    )


_EXPERTS = (
    *("layer", "router", "routing", "experts", "dropless", "capacity", "grouped_linear"),
    *("expert_all_to_all", "token_permutation"),
)
_ADAPTERS = (
    *("layers.lora.linear", "layers.lora.adapters", "layers.lora.magnitude", "modifiers.lora"),
    *("checkpoint.adapters", "interop.peft", "interop.peft_reading", "interop.peft_magnitudes"),
)
_SCALING = ("layers.quantization.current_scaling", "layers.quantization.delayed_scaling")

_FEATURES = {
    "rope": (("layers.attention.rope", "interop.gguf_rope"), "Rotary positions"),
    "moe": (
        tuple(f"layers.moe.{name}" for name in _EXPERTS),
        "Experts in the place of feed-forward layers",
    ),
    "int8": ((*_SCALING, "modifiers.quantization"), "Linear layers' products in int8"),
    "lora": (
        _ADAPTERS,
        "Adapters of low rank, and all else frozen",
    ),
    "rslora": (_ADAPTERS, "Adapters whose scale does not shrink with their rank"),
    "dora": (_ADAPTERS, "Adapters that train lengths and directions of weights apart"),
    "qlora": (
        (
            *_ADAPTERS,
            *("layers.quantization.frozen_linear", "layers.quantization.nf4"),
            *("interop.freezing", "modifiers.quantized_base"),
        ),
        "Adapters beside weights that are kept in four bits",
    ),
    "sliding_cache": (
        ("layers.attention.sliding_cache", "modifiers.sliding_cache"),
        "Serving keeps no more than the window",
    ),
    "half_cache": (
        ("layers.attention.half_store", "modifiers.half_cache"),
        "Serving keeps keys and values in float16",
    ),
    "quantized_cache": (
        ("layers.attention.quantized_store", "modifiers.quantized_cache"),
        "Serving keeps keys and values in int8",
    ),
}
"""Features whose cost is measured: their own modules, and a summary."""

_VARIANT_OF = {
    **dict.fromkeys(("lora", "rslora", "dora", "qlora"), "lora"),
    **dict.fromkeys(("sliding_cache", "half_cache", "quantized_cache"), "kv_cache"),
    "int8": "low_precision",
}
"""What features are variants of, by their names."""


@hook.features
def features() -> Iterator[Feature]:
    """What the core's parts add to any model."""
    for name, (modules, summary) in _FEATURES.items():
        yield Feature(
            name=name,
            apply=Ref(f"axcore.complexity.features:with_{name}"),
            evidence=Ref(f"axcore.complexity.features:has_{name}"),
            implementation=tuple(f"axcore.{module}" for module in modules),
            variant_of=_VARIANT_OF.get(name, ""),
            summary=summary,
        )


@hook.commands
def commands() -> Iterator[Command]:
    """The subcommands of `axcore`: one line each; `fn` names a click command."""
    for name, module, summary in (
        ("train", "train", "Train an experiment, or resume it"),
        ("launch", "launch", "Start a training run on an engine: local, Slurm, Kubernetes, ..."),
        ("runs", "runs", "List runs and their state, and why one ended"),
        ("report", "report", "One HTML page about a run, or about several beside each other"),
        ("profile", "profile", "What the time of recorded steps went to, by module"),
        ("watch", "watch", "Runs while they train, in the terminal or in a browser"),
        ("rehearse", "rehearse", "Train with the faults of a plan, and report what happened"),
        ("generate", "generate", "Draw text from a trained run"),
        ("serve", "serve", "Answer requests over HTTP, as OpenAI's API does"),
        ("evaluate", "evaluate", "What a model knows, by tasks, or its validation loss"),
        ("convert", "convert", "Weights of published models to runs, and back"),
        ("merge", "merge", "Models, or steps of a run, merged into one: linear, slerp, ties"),
        ("data", "data", "Build a token store, or look at one"),
        ("config", "config", "Show, explore, compare and pin down configs"),
        ("completion", "completion", "What a shell needs to complete commands and paths"),
        ("experiments", "experiments", "List the experiments there are"),
        ("plugins", "plugins", "List plugins, and what is wrong with them"),
        ("plugin", "plugin", "Write a new plugin, or check one"),
        ("aot", "aot", "Compile a train step for hardware that is not here, and say what it takes"),
        ("kernels", "kernels", "List an op's kernels, and why each is chosen or not"),
        ("loc", "loc", "Measure what features and changes cost in lines of code"),
        ("doctor", "doctor", "Look for what is wrong with this machine's set-up"),
    ):
        yield Command(name=name, fn=Ref(f"axcore.cli.{module}:{module}"), summary=summary)


@hook.doctor_checks
def doctor_checks() -> Iterator[DoctorCheck]:
    """What `axcore doctor` looks at whatever is installed."""
    for name, function, summary in (
        ("versions", "versions", "Python and packages are ones that axcore runs on"),
        ("plugins", "plugins", "Every plugin that is installed loads"),
        ("environment", "environment", "Variables that JAX reads say what they seem to"),
        ("processes", "processes", "This process has the index that its run expects"),
        ("devices", "devices", "JAX starts, and a plugin knows its devices"),
        ("sandbox", "sandbox", "Programs that a model wrote can be confined"),
    ):
        yield DoctorCheck(
            name=name, fn=Ref(f"axcore.cli.doctor_checks:{function}"), summary=summary
        )
    yield DoctorCheck(
        name="caches",
        fn=Ref("axcore.cli.doctor_caches:caches"),
        summary="Folders of what can be made again can be written, and hold nothing broken",
    )
