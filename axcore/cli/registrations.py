"""The subcommands of `axcore`, and the checks of `axcore doctor`."""

from collections.abc import Iterator

from axcore.plugins import Command, DoctorCheck, Ref, hook


@hook.commands
def commands() -> Iterator[Command]:
    """The subcommands of `axcore`: one line each; `fn` names a click command."""
    for name, summary in (
        ("train", "Train an experiment, or resume it"),
        ("launch", "Start a training run on an engine: local, Slurm, Kubernetes, ..."),
        ("runs", "List runs and their state, and why one ended"),
        ("report", "One HTML page about a run, or about several beside each other"),
        ("profile", "What the time of recorded steps went to, by module"),
        ("watch", "Runs while they train, in the terminal or in a browser"),
        ("fault-test", "Train with the faults of a plan, and report what happened"),
        ("generate", "Draw text from a trained run"),
        ("serve", "Answer requests over HTTP, as OpenAI's API does"),
        ("evaluate", "What a model knows, by tasks, or its validation loss"),
        ("convert", "Weights of published models to runs, and back"),
        ("merge", "Models, or steps of a run, merged into one: linear, slerp, ties"),
        ("data", "Build a token store, or look at one"),
        ("config", "Show, explore, compare and pin down configs"),
        ("completion", "What a shell needs to complete commands and paths"),
        ("experiments", "List the experiments there are"),
        ("plugins", "List plugins, and what is wrong with them"),
        ("plugin", "Write a new plugin, or check one"),
        ("aot", "Compile a train step for hardware you do not have, and say what it takes"),
        ("kernels", "List an op's kernels, and why each is chosen or not"),
        ("loc", "Measure what features and changes cost in lines of code"),
        ("doctor", "Look for what is wrong with this machine's set-up"),
    ):
        module = name.replace("-", "_")
        yield Command(name=name, fn=Ref(f"axcore.cli.{module}:{module}"), summary=summary)


@hook.doctor_checks
def doctor_checks() -> Iterator[DoctorCheck]:
    """What `axcore doctor` looks at whatever is installed."""
    for name, summary in (
        ("versions", "Python and packages are ones that axcore runs on"),
        ("plugins", "Every plugin that is installed loads"),
        ("environment", "Variables that JAX reads say what they seem to"),
        ("processes", "This process has the index that its run expects"),
        ("devices", "JAX starts, and a plugin knows its devices"),
        ("sandbox", "Programs that a model wrote can be confined"),
    ):
        yield DoctorCheck(name=name, fn=Ref(f"axcore.cli.doctor_checks:{name}"), summary=summary)
    yield DoctorCheck(
        name="caches",
        fn=Ref("axcore.cli.doctor_caches:caches"),
        summary="Folders of what can be made again can be written, and hold nothing broken",
    )
