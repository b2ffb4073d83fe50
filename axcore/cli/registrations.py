"""The subcommands of `axcore`, and the checks of `axcore doctor`."""

from collections.abc import Iterator

from axcore.plugins import Command, DoctorCheck, Ref, hook


@hook.commands
def commands() -> Iterator[Command]:
    """The subcommands of `axcore`: one line each; `fn` names a click command."""
    for name, module, summary in (
        ("train", "train", "Train an experiment, or resume it"),
        ("launch", "launch", "Start a training run on an engine: local, Slurm, Kubernetes, ..."),
        ("sweep", "sweep", "Train every combination of some settings, and compare the runs"),
        ("scaling-law", "scaling_law", "Fit the loss of runs by their size and tokens"),
        ("agent", "agent", "Supervise a run over hosts: once on each, as an engine starts it"),
        ("runs", "runs", "List runs and their state, and why one ended"),
        ("report", "runs", "Write an HTML page about a run, or one that compares several"),
        ("profile", "runs", "Show a step-time breakdown by module"),
        ("watch", "watch", "Watch runs while they train, in the terminal or in a browser"),
        ("fault-test", "fault_test", "Train with the faults of a plan, and report what happened"),
        ("generate", "generate", "Generate text from a trained run"),
        ("chat", "chat", "Talk to a model in the terminal"),
        ("serve", "serve", "Serve a model over HTTP, with OpenAI's API"),
        ("evaluate", "evaluate", "Evaluate a model on tasks, or on its validation data"),
        ("chat-template", "chat_template", "Check whether a chat template can be driven in tokens"),
        ("convert", "convert", "Convert pretrained checkpoints to runs, and back"),
        ("merge", "convert", "Merge models, or steps of a run: linear, slerp, ties"),
        ("data", "data", "Build a token store, or inspect one"),
        ("config", "config", "Show, explore, compare and pin down configs"),
        ("completion", "options", "Print a script that completes commands in your shell"),
        ("experiments", "experiments", "List the experiments"),
        ("plugins", "plugins", "List plugins, and what is wrong with them"),
        ("plugin", "plugins", "Write a new plugin, or check one"),
        ("aot", "aot", "Compile a train step for hardware you do not have"),
        ("plan", "plan", "Compare kinds of hardware by fit, cost and hours"),
        ("kernels", "kernels", "List an op's kernels, and why each is chosen or not"),
        ("loc", "loc", "Measure what features and changes cost in lines of code"),
        ("doctor", "doctor", "Check the installation"),
    ):
        fn = Ref(f"axcore.cli.{module}:{name.replace('-', '_')}")
        yield Command(name=name, fn=fn, summary=summary)


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
        ("caches", "Folders of what can be made again can be written, and hold nothing broken"),
    ):
        yield DoctorCheck(name=name, fn=Ref(f"axcore.cli.doctor:{name}"), summary=summary)
