"""What continues from a run: fine-tuning, and modifiers that begin with its weights."""

from collections.abc import Iterator

from axcore.plugins import Experiment, Modifier, Ref, hook


@hook.experiments
def experiments() -> Iterator[Experiment]:
    """Fine-tuning of a run or of a pretrained checkpoint."""
    yield Experiment(
        name="sft",
        fn=Ref("axcore.runs.base_model:sft"),
        summary="A run or a pretrained checkpoint, trained further on conversations",
    )
    yield Experiment(
        name="multimodal-sft",
        fn=Ref("axcore.runs.base_model:multimodal_sft"),
        summary="A model that reads pictures or sounds, trained further on chats about them",
    )
    yield Experiment(
        name="dpo",
        fn=Ref("axcore.runs.base_model:dpo"),
        summary="A run or a pretrained checkpoint, trained further on answers chosen over others",
    )
    yield Experiment(
        name="reward-model",
        fn=Ref("axcore.runs.base_model:reward_model"),
        summary="A run or a pretrained checkpoint, trained to score answers by pairs of them",
    )
    yield Experiment(
        name="kto",
        fn=Ref("axcore.runs.base_model:kto"),
        summary="A run or a pretrained checkpoint, trained further on answers labelled one by one",
    )


@hook.modifiers
def modifiers() -> Iterator[Modifier]:
    """Run that begin with another run, and text samples of a run."""
    yield Modifier(
        name="distill",
        config=Ref("axcore.runs:DistillFrom"),
        summary="A run learns from the probabilities of a teacher, which is in memory too",
    )
    yield Modifier(
        name="distill_top_k",
        config=Ref("axcore.runs:DistillFromCache"),
        summary="A run learns from a teacher's likeliest tokens, which are in files",
    )
    yield Modifier(
        name="on_policy_distill",
        config=Ref("axcore.runs:OnPolicyDistillFrom"),
        summary="A run learns from a teacher at each token that it samples itself",
    )
    yield Modifier(
        name="from_run",
        config=Ref("axcore.runs:FromRun"),
        summary="A run begins with the weights of another run",
    )
    yield Modifier(
        name="generate_samples",
        config=Ref("axcore.runs:GenerateSamples"),
        summary="Text generated at each evaluation, and kept with the run",
    )
