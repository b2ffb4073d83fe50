"""Bugs that were planted: the suite named finds each, says what is wrong, and passes what is right.

Each row is a bug, the suite with the values that plant it, the claim that must fail, and words of
what it must say.
"""

import sys
import types

import planted_kernels
import planted_layers
import planted_records as records
import pytest
from counts import count
from planted_kernels import PlantedKernels
from planted_layers import PlantedCores, PlantedLayers, PlantedPositions
from planted_records import (
    PlantedModifiers,
    PlantedObservers,
    PlantedSources,
    PlantedTokenizers,
    PlantedWriters,
)


def layer(name, suite=PlantedLayers):
    return suite, {"layer": getattr(planted_layers, name)}


def kernel(fn="right", **values):
    assert hasattr(planted_kernels, fn)
    return PlantedKernels, {"fn": fn, **values}


def of(suite, field, name, **values):
    assert hasattr(records, name)
    return suite, {field: name, **values}


def modifier(name):
    return of(PlantedModifiers, "config", name)


def writer(name, **values):
    return of(PlantedWriters, "fn", name, **values)


def source(name):
    return of(PlantedSources, "source", name)


def tokenizer(name):
    return of(PlantedTokenizers, "tokenizer_class", name)


def observer(name):
    return of(PlantedObservers, "fn", name)


BUGS = {
    # layers
    "ignores segment ids": (
        layer("SeesOtherDocuments", PlantedCores),
        "documents_of_a_row",
        "a document sees the one before it: what mixes tokens has to heed info.segment_ids",
    ),
    "sees the future": (
        layer("SeesTheFuture", PlantedCores),
        "no_token_sees",
        "a token is seen by those before it",
    ),
    "sees padding": (
        layer("SeesPadding", PlantedCores),
        "padding_changes",
        "other padding gives other logits",
    ),
    "positions of the call": (
        layer("CountsFromTheCall", PlantedPositions),
        "cache_gives",
        "with 6 tokens in the cache, token 6 gives other logits",
    ),
    "keeps nothing in a cache": (
        layer("LooksBack"),
        "cache_gives",
        "with 6 tokens in the cache, token 6 gives other logits",
    ),
    "mixes rows": (layer("MixesRows"), "no_token_sees", "changes another row"),
    "a fixed dropout key": (layer("FixedKey"), "random_numbers", "two keys give the same"),
    "dropout outside of training": (
        layer("DropsAlways"),
        "random_numbers",
        "a random key is needed but the call has none",
    ),
    "dropout that drops nothing": (
        layer("DropsNever"),
        "random_numbers",
        "a dropout of 0.5 changes nothing in training",
    ),
    "an unused parameter": (layer("UnusedParameter"), "learns", "factor has no gradient"),
    "a gradient that is cut": (layer("CutGradient"), "learns", "has no gradient"),
    "a gradient that is not finite": (layer("InfiniteGradient"), "learns", "is not finite"),
    "a gradient of the wrong sign": (layer("ClimbsTheLoss"), "learns", "the loss does not fall"),
    "parameters in bfloat16": (
        layer("NarrowParameter"),
        "parameters_stay",
        "parameters are kept in 16 bits: {'decoder.stack.layer.feed_forward.factor'",
    ),
    "lost in bfloat16": (
        layer("LosesSmallNumbers"),
        "parameters_stay",
        "of those in float32",
    ),
    "counts its calls": (layer("CountsCalls"), "nothing_but", "the same module is another program"),
    "numbers of its own": (layer("DrawsByItself"), "nothing_but", "is another program"),
    "first weights by chance": (layer("OtherFirstWeights"), "nothing_but", "other parameters"),
    "depends on the number of rows": (layer("KnowsItsRows"), "vmap", "a row alone gives other"),
    "a config that no file can store": (layer("HoldsAFunction"), "saved_and_read_back", "function"),
    # kernels
    "the wrong dtype": (
        kernel("wrong_dtype", dtypes=("bfloat16",)),
        "equals_the_reference",
        "float32[3,5,24]",
    ),
    "the wrong shape": (kernel("wrong_shape"), "equals_the_reference", "[1,3,5,24]"),
    "a little off": (kernel("a_little_off"), "equals_the_reference", "the values are off by"),
    "computes in bfloat16": (
        kernel("cast_down", dtypes=("bfloat16",)),
        "float32_call",
        "is something cast to bfloat16?",
    ),
    "sums in bfloat16": (
        kernel("sums_in_16_bits"),
        "not_computed_in_16_bits",
        "rsqrt of bfloat16",
    ),
    "ignores a choice": (
        kernel("no_epsilon", case_names=("large_epsilon",)),
        "equals_the_reference",
        "the values are off by",
    ),
    "ignores another choice": (
        kernel("no_offset", case_names=("offset",)),
        "equals_the_reference",
        "the values are off by",
    ),
    "a wrong gradient": (
        kernel("wrong_gradient"),
        "equals_the_reference",
        "the gradients are off by",
    ),
    "counts its calls, a kernel": (
        kernel("counts_calls"),
        "second_call",
        "another program the second time",
    ),
    "NaN": (kernel("infinite"), "equals_the_reference", "the values are off by inf"),
    "zero by zero": (
        kernel("zero_by_zero"),
        "stay_finite",
        "numbers that are not finite where the reference's are, of 2 arrays whose first rows",
    ),
    "subtracts no maximum": (kernel("no_maximum"), "stay_finite", "of 2 arrays times 30"),
    "refuses all": (kernel(reason="refuses_all"), "accepts_some_case", "never"),
    "refuses without a reason": (
        kernel(reason="refuses_without_a_reason"),
        "predicates",
        "unsupported_reason(",
    ),
    "asks for devices": (kernel(reason="asks_a_device"), "predicates", "asked jax for devices"),
    # modifiers
    "reads the environment": (
        modifier("ReadsTheEnvironment"),
        "nothing_but_config",
        "reads $ACME_STEPS",
    ),
    "reads the folder": (modifier("ReadsTheFolder"), "nothing_but_config", "elsewhere"),
    "reads the clock": (modifier("ReadsTheClock"), "nothing_but_config", "at another time"),
    "samples a value": (modifier("Draws"), "is_pure", "another config the second time"),
    "adds up": (modifier("AddsUp"), "applied_twice", "max_steps"),
    "changes its input": (modifier("ChangesWhatItGets"), "is_pure", "changes the config"),
    "asks for devices, a modifier": (modifier("AsksADevice"), "asks_no_device", "asked jax for"),
    "does nothing": (modifier("DoesNothing"), "changes_something", "changes nothing"),
    "returns a part": (modifier("ReturnsAPart"), "saved_and_read_back", "returns a "),
    # writers
    "drops NaN": (writer("DropsWhatIsNotFinite"), "not_finite", "something is dropped"),
    "drops NaN, unread": (
        writer("DropsWhatIsNotFinite", is_read=False),
        "different_files",
        "the same for infinity as for nan",
    ),
    "drops validation": (
        writer("DropsValidation", is_read=False),
        "different_files",
        "the same for another split as for nothing",
    ),
    "rounds": (writer("RoundsValues"), "lines_are_read_back", "2.5"),
    "keeps the first names": (writer("KeepsFirstNames"), "lines_are_read_back", "skipped_steps"),
    "keeps some names": (writer("KeepsSomeNames"), "many_metrics", "100 of 200 metrics are lost"),
    "writes steps twice": (
        writer("WritesStepsTwice"),
        "opening_at_a_step",
        "contains steps [8, 9, 10, 11]",
    ),
    "forgets what is there": (writer("BeginsAnew"), "opening_at_a_step", "contains steps []"),
    "shares a file": (writer("SharesAFile"), "do_not_share", "0.0, 1.0"),
    "takes metrics out": (
        writer("TakesMetricsOut"),
        "left_as_they_are",
        "changes what it is given",
    ),
    "drops train only": (writer("DropsTrainOnly"), "opening_at_a_step", "[8, 9, 10, 11]"),
    "steps as text": (writer("SortsStepsAsText"), "opening_at_a_step", "contains steps [8, 9, 10"),
    "names in ASCII": (writer("WritesAscii"), "many_metrics", "2 of 200 metrics are lost"),
    # sources
    "order of the disk": (source("InAnyOrder"), "order_is_neither", "sort them"),
    "shuffled": (source("Shuffled"), "same_each_time", "a second reader gets other documents"),
    "absolute names": (source("NamedByPath"), "named_apart", "names are absolute paths"),
    "equal names": (source("NamedAlike"), "named_apart", "several documents have the names"),
    "read once": (source("ReadOnce"), "do_not_share_a_place", "read again, the same source"),
    "one cursor": (source("OneCursor"), "do_not_share_a_place", "another reader"),
    "two lines": (source("SaysTooMuch"), "one_line", "of a folder"),
    "half of a pair": (source("HalfOfAPair"), "named_apart", "surrogates not allowed"),
    "divides itself": (source("DividesItself"), "every_process", "read them all"),
    "names from here": (source("NamedFromHere"), "named_apart", "names lead out of a folder"),
    "one buffer": (source("OneBuffer"), "stay_as_they_were", "change after they are given"),
    "other tokens": (source("OtherTokens"), "do_not_share_a_place", "read again, the same source"),
    # tokenizers
    "loses capitals": (tokenizer("LosesCapitals"), "comes_back", "'the quick brown fox"),
    "out of the vocabulary": (tokenizer("LeavesTheVocabulary"), "below_the_size", "of 264 tokens"),
    "below zero": (tokenizer("SignedBytes"), "below_the_size", "has -"),
    "sees its batch": (tokenizer("BeginsEachBatch"), "of_a_batch", "in a batch than alone"),
    "eos is a letter": (tokenizer("EndsWithALetter"), "special_tokens", "a token of a text, too"),
    "specials are text": (tokenizer("WritesSpecialsOut"), "special_tokens", "'</s>'"),
    "other bytes": (tokenizer("WrongBytes"), "bytes_of_tokens", "are other ones"),
    "loses zeros": (tokenizer("LosesZeros"), "comes_back", "and a zero"),
    "loses marks": (tokenizer("LosesMarks"), "comes_back", "ufeffa mark"),
    "shortens blanks": (tokenizer("ShortensBlanks"), "comes_back", "comes back as"),
    "reads specials": (tokenizer("ReadsSpecials"), "comes_back", "'<|endoftext|> </s>"),
    "remembers beginnings": (tokenizer("RemembersBeginnings"), "comes_back", "comes back as"),
    # observers
    "wants numbers": (observer("WantsNumbers"), "every_event", "ValueError at StepsDone"),
    "changes events": (observer("ChangesEvents"), "changes_no_event", "changes StepsDone"),
    "one for all runs": (observer("the_same_one"), "are_two", "would share one"),
    "a list for all runs": (observer("SharesAList"), "are_two", "change _SEEN, seen of another's"),
    "the best of all runs": (observer("BestOfAll"), "are_two", "change best of another's"),
    "writes here": (observer("WritesHere"), "no_other_folder", "leaves ['journal.txt']"),
}
RIGHT = {
    "layer": layer("Dropping"),
    "kernel": kernel(),
    "modifier": modifier("SetsSteps"),
    "writer": writer("Lines"),
    "writer that is not read": writer("Lines", is_read=False),
    "source": source("Texts"),
    "tokenizer": tokenizer("ByteTokenizer"),
    "observer": observer("Watches"),
}


NOW = types.ModuleType("planted_now")
"""Where the file of tests that pytest collects finds the suite to run."""


class Outcomes:
    """Hears of each claim: what it said where it failed, and nothing where it held."""

    def __init__(self):
        self.failed, self.passed = {}, []

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed[report.nodeid] = report.longreprtext
        elif report.passed and report.when == "call":
            self.passed.append(report.nodeid)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a suite with some values as pytest runs that of a plugin, but in this process.

    It is not a `pytester`, which takes modules out of Python again: libraries in C do not survive
    it.
    """

    def run(planted, *options):
        suite, values = planted
        NOW.suite = type("TestPlanted", (suite,), values)
        monkeypatch.setitem(sys.modules, NOW.__name__, NOW)
        file, outcomes = tmp_path / f"test_{tmp_path.name}.py", Outcomes()
        file.write_text(f"from {NOW.__name__} import suite as TestPlanted")
        without = [f"no:{name}" for name in ("cacheprovider", "faulthandler", "xdist")]
        options = [*options, *(word for name in without for word in ("-p", name))]
        pytest.main(
            [str(file), f"--rootdir={tmp_path}", "-q", "-s", "--import-mode=importlib", *options],
            plugins=[outcomes],
        )
        return outcomes

    return run


def test_bugs_are_of_75_kinds_at_least():
    assert len({repr(planted) for planted, _, _ in BUGS.values()}) >= 75


@pytest.mark.quick_one_in(3)
@pytest.mark.every_case
@pytest.mark.parametrize("bug", BUGS)
def test_suite_finds_the_bug_and_says_what_is_wrong(run, bug):
    planted, claim, words = BUGS[bug]
    failed = run(planted, "-k", claim).failed
    is_found = any(claim in name for name in failed)
    count("bugs of plugins found by suites", int(is_found), 1)
    assert is_found, "no such claim fails"
    assert any(words in said for said in failed.values()), failed


@pytest.mark.parametrize(
    "kind",
    [pytest.param(one, marks=pytest.mark.slow if one == "layer" else ()) for one in RIGHT],
)
def test_suite_passes_what_is_right(run, kind):
    outcomes = run(RIGHT[kind])
    assert len(outcomes.passed) >= 3
    assert not outcomes.failed, outcomes.failed
