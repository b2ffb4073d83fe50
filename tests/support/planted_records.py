"""Modifiers, writers, sources, tokenizers and observers with a bug each, and some without."""

import json
import os
import random
import re
import time
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np

from axcore.config import REQUIRED, config, evolve, update_config
from axcore.data import ByteTokenizer
from axcore.data.document import Document, Source
from axcore.plugins import DataSource, DataTokenizer, MetricWriter, Modifier, Ref, RunObserver
from axcore.testing import (
    DataSourceSuite,
    ModifierSuite,
    ObserverSuite,
    TokenizerSuite,
    WriterSuite,
)
from axcore.trainer.callbacks.events import StepsDone

HERE = "planted_records"

# -- Modifiers ---------------------------------------------------------------------------------


@config
class SetsSteps:
    """What is right."""

    num_steps: int = 7

    def apply(self, cfg: Any, hardware: Any) -> Any:
        return update_config(cfg, {"max_steps": self.num_steps})


@config
class ReadsTheEnvironment:
    def apply(self, cfg: Any, hardware: Any) -> Any:
        return update_config(cfg, {"max_steps": int(os.environ.get("ACME_STEPS", "7"))})


@config
class ReadsTheFolder:
    def apply(self, cfg: Any, hardware: Any) -> Any:
        return update_config(cfg, {"prompt": Path.cwd().name})


@config
class ReadsTheClock:
    def apply(self, cfg: Any, hardware: Any) -> Any:
        return update_config(cfg, {"max_steps": int(time.time()) // 1000})


@config
class Draws:
    def apply(self, cfg: Any, hardware: Any) -> Any:
        return update_config(cfg, {"max_steps": random.randrange(3, 10**9)})


@config
class AddsUp:
    def apply(self, cfg: Any, hardware: Any) -> Any:
        return update_config(cfg, {"max_steps": cfg.max_steps + 1})


@config
class ChangesWhatItGets:
    def apply(self, cfg: Any, hardware: Any) -> Any:
        object.__setattr__(cfg, "max_steps", 7)
        return evolve(cfg, prompt="a")


@config
class AsksADevice:
    def apply(self, cfg: Any, hardware: Any) -> Any:
        return update_config(cfg, {"max_steps": 5 + len(jax.devices())})


@config
class DoesNothing:
    def apply(self, cfg: Any, hardware: Any) -> Any:
        return cfg


@config
class ReturnsAPart:
    def apply(self, cfg: Any, hardware: Any) -> Any:
        return cfg.model


class PlantedModifiers(ModifierSuite):
    plugin = "axl-planted"
    config: ClassVar[str] = "SetsSteps"

    @classmethod
    def records(cls):
        ref = Ref(f"{HERE}:{cls.config}")
        return (Modifier(name="planted", config=ref, summary="Planted"),)


# -- Writers -----------------------------------------------------------------------------------


class Lines:
    """What is right: a line of JSON for each write, and those past `step` dropped at the start."""

    def __init__(self, folder: str, step: int) -> None:
        self.path = Path(folder) / "lines"
        kept = self.kept(self.path.read_text().splitlines() if self.path.exists() else [], step)
        self.path.write_text("".join(f"{line}\n" for line in kept))

    def kept(self, lines: list[str], step: int) -> list[str]:
        return [line for line in lines if json.loads(line)[0] <= step]

    def write(self, step: int, split: str, metrics: Any) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps([step, split, {k: float(v) for k, v in metrics.items()}]) + "\n")

    def close(self) -> None:
        pass


class DropsWhatIsNotFinite(Lines):
    def write(self, step: int, split: str, metrics: Any) -> None:
        super().write(step, split, {k: v for k, v in metrics.items() if np.isfinite(v)})


class DropsValidation(Lines):
    def write(self, step: int, split: str, metrics: Any) -> None:
        if split == "train":
            super().write(step, split, metrics)


class RoundsValues(Lines):
    def write(self, step: int, split: str, metrics: Any) -> None:
        super().write(step, split, {k: round(v, 1) for k, v in metrics.items()})


class KeepsFirstNames(Lines):
    """As a table whose columns are those of the first line."""

    names: tuple[str, ...] = ()

    def write(self, step: int, split: str, metrics: Any) -> None:
        self.names = self.names or tuple(metrics)
        super().write(step, split, {k: v for k, v in metrics.items() if k in self.names})


class KeepsSomeNames(Lines):
    def write(self, step: int, split: str, metrics: Any) -> None:
        super().write(step, split, dict([*metrics.items()][:100]))


class WritesStepsTwice(Lines):
    def kept(self, lines: list[str], step: int) -> list[str]:
        return lines


class BeginsAnew(Lines):
    def kept(self, lines: list[str], step: int) -> list[str]:
        return []


class SharesAFile(Lines):
    def __init__(self, folder: str, step: int) -> None:
        super().__init__(str(Path(folder).parent), step)


class TakesMetricsOut(Lines):
    def write(self, step: int, split: str, metrics: Any) -> None:
        super().write(step, split, {k: metrics.pop(k) for k in [*metrics]})


class DropsTrainOnly(Lines):
    """Lines of validation past `step` stay."""

    def kept(self, lines: list[str], step: int) -> list[str]:
        return [
            line for line in lines if json.loads(line)[1] != "train" or json.loads(line)[0] <= step
        ]


class SortsStepsAsText(Lines):
    def kept(self, lines: list[str], step: int) -> list[str]:
        return [line for line in lines if str(json.loads(line)[0]) <= str(step)]


class WritesAscii(Lines):
    def write(self, step: int, split: str, metrics: Any) -> None:
        ascii_of = {k: k.encode("ascii", "ignore").decode() for k in metrics}
        super().write(step, split, {ascii_of[k]: v for k, v in metrics.items()})


class PlantedWriters(WriterSuite):
    plugin = "axl-planted"
    fn: ClassVar[str] = "Lines"
    is_read: ClassVar[bool] = True

    @classmethod
    def records(cls):
        return (MetricWriter(name="planted", fn=Ref(f"{HERE}:{cls.fn}"), summary="Planted"),)

    def read(self, record, folder):
        if not self.is_read:
            return super().read(record, folder)
        path = folder / "lines"
        path = path if path.exists() else folder.parent / "lines"
        return [tuple(json.loads(line)) for line in path.read_text().splitlines()]


# -- Sources -----------------------------------------------------------------------------------


class Texts(Source):
    """What is right: the files of a folder, in the order of their names."""

    @config
    class Config(Source.Config):
        folder: str = REQUIRED

    config: Config

    def files(self) -> list[Path]:
        return sorted(Path(self.config.folder).iterdir())

    def name(self, file: Path) -> str:
        return file.name

    def documents(self):
        for file in self.files():
            yield Document(name=self.name(file), text=file.read_text())

    def describe(self) -> str:
        return "files of a folder"


class InAnyOrder(Texts):
    @config
    class Config(Texts.Config):
        pass

    def files(self) -> list[Path]:
        return [*Path(self.config.folder).iterdir()]


class Shuffled(Texts):
    @config
    class Config(Texts.Config):
        pass

    def files(self) -> list[Path]:
        return random.sample(super().files(), 10)


class NamedByPath(Texts):
    @config
    class Config(Texts.Config):
        pass

    def name(self, file: Path) -> str:
        return str(file)


class NamedAlike(Texts):
    @config
    class Config(Texts.Config):
        pass

    def name(self, file: Path) -> str:
        return file.suffix


class ReadOnce(Texts):
    """One iterator for all who read."""

    @config
    class Config(Texts.Config):
        pass

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self.once = super().documents()

    def documents(self):
        return self.once


class OneCursor(Texts):
    """Each reader begins at the first document, and moves all others."""

    @config
    class Config(Texts.Config):
        pass

    def documents(self):
        self.place, files = 0, self.files()
        while self.place < len(files):
            file = files[self.place]
            self.place += 1
            yield Document(name=file.name, text=file.read_text())


class SaysTooMuch(Texts):
    @config
    class Config(Texts.Config):
        pass

    def describe(self) -> str:
        return "files\nof a folder"


class HalfOfAPair(Texts):
    @config
    class Config(Texts.Config):
        pass

    def documents(self):
        for one in super().documents():
            yield Document(name=one.name, text=one.text + "\ud83d")


class DividesItself(Texts):
    """Each process has its part, of which it gets a part again."""

    @config
    class Config(Texts.Config):
        pass

    def files(self) -> list[Path]:
        rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        return super().files()[rank::size]


class NamedFromHere(Texts):
    @config
    class Config(Texts.Config):
        pass

    def name(self, file: Path) -> str:
        return os.path.relpath(file)


class OneBuffer(Texts):
    """All documents hold the same array, which is written again for each."""

    @config
    class Config(Texts.Config):
        pass

    def documents(self):
        tokens = np.zeros(4, np.int32)
        for number, one in enumerate(super().documents()):
            tokens[:] = number
            yield Document(name=one.name, text=one.text, tokens=tokens)


class OtherTokens(Texts):
    """Names and texts stay; tokens are others in the second epoch."""

    @config
    class Config(Texts.Config):
        pass

    epoch = 0

    def documents(self):
        self.epoch += 1
        for one in super().documents():
            yield Document(name=one.name, text=one.text, tokens=np.full(4, self.epoch))


class PlantedSources(DataSourceSuite):
    plugin = "axl-planted"
    source: ClassVar[str] = "Texts"

    @classmethod
    def records(cls):
        ref = Ref(f"{HERE}:{cls.source}.Config")
        return (DataSource(name="planted", config=ref, summary="Planted"),)

    def make(self, record, folder):
        texts = folder / "texts"
        texts.mkdir()
        for number in range(10):
            (texts / f"{number}.txt").write_text(f"text {number} of a few")
        return record.config.resolve()(folder=str(texts))


# -- Tokenizers --------------------------------------------------------------------------------


class LosesCapitals(ByteTokenizer):
    @config
    class Config(ByteTokenizer.Config):
        pass

    def encode_many(self, texts):
        return super().encode_many([text.lower() for text in texts])


class LeavesTheVocabulary(ByteTokenizer):
    @config
    class Config(ByteTokenizer.Config):
        pass

    def encode_many(self, texts):
        return [tokens.astype(np.int32) + 200 for tokens in super().encode_many(texts)]

    def encode(self, text):
        return self.encode_many([text])[0]

    def decode(self, tokens):
        return super().decode([one - 200 for one in tokens])


class SignedBytes(ByteTokenizer):
    """Bytes from 128 on are below zero."""

    @config
    class Config(ByteTokenizer.Config):
        pass

    def encode_many(self, texts):
        return [tokens.astype(np.int8) for tokens in super().encode_many(texts)]

    def encode(self, text):
        return super().encode_many([text])[0].astype(np.int32)


class BeginsEachBatch(ByteTokenizer):
    """A blank before the first text of a batch."""

    @config
    class Config(ByteTokenizer.Config):
        pass

    def encode_many(self, texts):
        return super().encode_many([(" " if n else "") + text for n, text in enumerate(texts)])


class EndsWithALetter(ByteTokenizer):
    """What ends a document is a token of texts, too."""

    @config
    class Config(ByteTokenizer.Config):
        pass

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self.eos_id = 10


class WritesSpecialsOut(ByteTokenizer):
    @config
    class Config(ByteTokenizer.Config):
        pass

    def decode(self, tokens):
        return "".join(
            "</s>" if one == 257 else ByteTokenizer.decode(self, [one]) for one in tokens
        )


class WrongBytes(ByteTokenizer):
    @config
    class Config(ByteTokenizer.Config):
        pass

    def token_bytes(self, token):
        return bytes([token]).lower() if 0 <= token < 256 else None


class LosesZeros(ByteTokenizer):
    @config
    class Config(ByteTokenizer.Config):
        pass

    def encode_many(self, texts):
        return super().encode_many([text.replace("\x00", "") for text in texts])


class LosesMarks(ByteTokenizer):
    @config
    class Config(ByteTokenizer.Config):
        pass

    def encode_many(self, texts):
        return super().encode_many([text.removeprefix("\ufeff") for text in texts])


class ShortensBlanks(ByteTokenizer):
    """Of more than 16 in a row."""

    @config
    class Config(ByteTokenizer.Config):
        pass

    def encode_many(self, texts):
        return super().encode_many([re.sub(" {17,}", " " * 16, text) for text in texts])


class ReadsSpecials(ByteTokenizer):
    """Whoever writes eos out ends the document."""

    @config
    class Config(ByteTokenizer.Config):
        pass

    def encode_many(self, texts):
        eos = np.array([self.eos_id], np.int32)
        parts = [
            super(ReadsSpecials, self).encode_many(one.split("<|endoftext|>")) for one in texts
        ]
        return [np.concatenate([x for p in one for x in (eos, p)][1:]) for one in parts]


class RemembersBeginnings(ByteTokenizer):
    """Texts that begin with the same 64 letters are one to it."""

    @config
    class Config(ByteTokenizer.Config):
        pass

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self.seen: dict[str, Any] = {}

    def encode_many(self, texts):
        found = super().encode_many(texts)
        return [
            self.seen.setdefault(text[:64], one) for text, one in zip(texts, found, strict=True)
        ]


class PlantedTokenizers(TokenizerSuite):
    plugin = "axl-planted"
    tokenizer_class: ClassVar[str] = "ByteTokenizer"

    @classmethod
    def records(cls):
        ref = Ref(f"{HERE}:{cls.tokenizer_class}.Config")
        return (DataTokenizer(name="planted", config=ref, summary="Planted"),)


# -- Observers ---------------------------------------------------------------------------------


class Watches:
    """What is right."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __call__(self, event: Any) -> None:
        self.seen.append(event)


class WantsNumbers(Watches):
    """Raises where the loss is not finite."""

    def __call__(self, event: Any) -> None:
        if isinstance(event, StepsDone):
            round(event.metrics["loss"])


class ChangesEvents(Watches):
    def __call__(self, event: Any) -> None:
        if isinstance(event, StepsDone):
            object.__setattr__(event, "step", 0)


class SharesAList(Watches):
    _SEEN: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        self.seen = self._SEEN


class BestOfAll(Watches):
    """Of all runs of the process."""

    best = float("inf")

    def __call__(self, event: Any) -> None:
        loss = getattr(event, "metrics", {}).get("loss", self.best)
        type(self).best = min(self.best, loss)


class WritesHere(Watches):
    """Into the folder that the run is started in."""

    def __call__(self, event: Any) -> None:
        Path("journal.txt").write_text(str(event))


_ONE = Watches()


def the_same_one() -> Watches:
    return _ONE


class PlantedObservers(ObserverSuite):
    plugin = "axl-planted"
    fn: ClassVar[str] = "Watches"

    @classmethod
    def records(cls):
        return (RunObserver(name="planted", fn=Ref(f"{HERE}:{cls.fn}"), summary="Planted"),)
