"""The engines that runs can be started on."""

from collections.abc import Iterator

from axcore.plugins import JobLauncher, Ref, hook


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
    yield JobLauncher(
        name="slurm",
        config=Ref("axcore.launch.slurm:Slurm"),
        process_info=Ref("axcore.launch.slurm:slurm_process_info"),
        summary="A script for sbatch, a process on each node",
    )
    yield JobLauncher(
        name="kubernetes",
        config=Ref("axcore.launch.kubernetes:Kubernetes"),
        process_info=Ref("axcore.launch.kubernetes:kubernetes_process_info"),
        summary="A JobSet, a pod for each process",
    )
    yield JobLauncher(
        name="skypilot",
        config=Ref("axcore.launch.skypilot:SkyPilot"),
        process_info=Ref("axcore.launch.skypilot:skypilot_process_info"),
        summary="A SkyPilot task, a node for each process",
    )
