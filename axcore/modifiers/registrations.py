"""The modifiers of any experiment."""

from collections.abc import Iterator

from axcore.plugins import Modifier, Ref, hook


@hook.modifiers
def modifiers() -> Iterator[Modifier]:
    """Change that any experiment can be asked to make."""
    for name, config, summary in (
        ("accumulate", "Accumulate", "Batches in more parts: less memory, same result"),
        ("micro_batches", "MicroBatches", "Batches in parts of so many rows a device"),
        ("remat", "RematModifier", "Layers' values computed again in the backward pass, by preset"),
        ("mesh_shape", "MeshShape", "Devices in another mesh"),
        ("pipelined", "Pipelined", "Layers in stages, over the mesh axis `pipeline`"),
        ("zero2", "Zero2", "Parameters in full; gradients and optimizer state split, as ZeRO-2"),
        ("shard", "Shard", "Dimensions split along other mesh axes, by their logical names"),
        ("pretrained", "Pretrained", "A run begins with the weights of a pretrained checkpoint"),
        ("lora", "LoRA", "Small corrections of linear layers trained, and nothing else"),
        ("quantized_base", "QuantizedBase", "What adapters correct kept in NF4 or int8, as QLoRA"),
        ("low_precision_optimizer", "LowPrecisionOptimizer", "Optimizer state in 8 or 16 bits"),
        ("multi_token_prediction", "MultiTokenPrediction", "Tokens after the next predicted, too"),
        ("kernels", "Kernels", "Kernels pinned by op, and portable ones allowed"),
        ("replace", "ReplaceConfig", "Another layer in the place of every layer of a class"),
        ("update", "UpdateConfig", "Values by path or glob"),
    ):
        ref = Ref(f"axcore.modifiers:{config}")
        yield Modifier(name=name, config=ref, summary=summary)
    yield Modifier(
        name="diloco",
        config=Ref("axcore.modifiers:DiLoCoModifier"),
        summary="Slices train on their own, and synchronize every 100 steps",
    )
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
        name="kv_cache",
        config=Ref("axcore.modifiers:KVCache"),
        summary="Serving keeps keys and values in 16 or 8 bits, or no more of them than a window",
    )
