"""`Family`: what a family of pretrained checkpoints is called, and how it maps to models here.

`CheckpointInfo` is what a checkpoint says about more than its numbers, so that an export is that
checkpoint again.
"""

import json
import re
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

import attrs
from immutabledict import immutabledict

from axcore.config import REQUIRED, config, diff_config, format_diff, suggest_names
from axcore.config.json_files import is_fetched, read_json
from axcore.errors import AxcoreError, CheckpointError, ConfigError
from axcore.interop.canonical import base_config, canonical
from axcore.interop.config_map import IRRELEVANT, ConfigEntry, Fields, sorted_out
from axcore.interop.decoder_maps import NUM_LAYERS, LayerKinds
from axcore.interop.gguf_map import GGUFMap
from axcore.interop.layouts import Layout
from axcore.interop.reward_models import is_reward_model, reward_family
from axcore.interop.weight_map import BoundMap, WeightMap, listed
from axcore.plugins import HuggingFaceFamily, plugin_host

TRAINING_ONLY = (r"\.dot\.",)
"""Arrays that pretrained checkpoints lack: what quantized training has measured."""

ADAPTER_ARRAYS = (r"\.lora_(down|up|magnitude)\.",)
"""Arrays of adapters, which pretrained checkpoints lack, and which at first change no number."""

# They describe the file or the software that wrote it, and an export writes its own.
_NOT_KEPT = frozenset(
    {
        "architectures",
        "auto_map",
        "dtype",
        "model_type",
        "quantization_config",
        "torch_dtype",
        "transformers_version",
    }
)
"""Fields that change no number, and that say what an export is otherwise than the model read."""


@config
class CheckpointInfo:
    """What a pretrained checkpoint's folder says about more than what the model computes.

    Attributes:
        family: The `model_type`.
        name: What the model is called: that of its folder.
        max_length: Tokens of a row at most, where it says so.
        fields: Fields of its `config.json` that change no number here.
        unknown_fields: Those of them that could change some, and were allowed.
        files: Paths of its files that exports have again; a run keeps copies.
        left_out: Names of its files that are not read, and that exports lack.
    """

    file_fields: ClassVar[tuple[str, ...]] = ("files",)

    family: str = REQUIRED
    name: str = ""
    max_length: int | None = None
    fields: Mapping[str, Any] = {}
    unknown_fields: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Family:
    """A family of pretrained checkpoints.

    Args:
        architecture: The class that transformers loads it with.
        template: Returns a config of the family, of any size, that the config map then completes.
        config: The config map, in the order in which entries are read.
        weights: From a config to the weight map of its model.
        layers: Which layers are of which kind, where there are several.
        other_weights: The same for files that have some arrays by other names or in other shapes;
            files are read by the map that knows more of their tensors, and written by `weights`.
        irrelevant: Fields of `config.json` that change no number, in addition to those of all
            families.
        unread: Fields that some files have, and no modelling code of the family reads, so that they
            are passed over with a warning, in addition to those of all families.
        skipped: Regular expressions of tensors that are passed over, unless the model has them.
        mtp_counts: Fields with the number of layers behind the last for multi-token prediction,
            which the models here do not have.
        mtp_tensors: Regular expressions of tensors of such layers, where they have names of their
            own.
        copies: Tensors that some files have once more, by name, and the ones they repeat.
        prefix: What names of the map begin with, where some files leave that out in all names.
        length: The field with the tokens of a row, at most.
        nested: The field that contains all of these fields, in models of more than text.
        parts: Fields that each contain those of a part of the model. Entries call them `part.name`.
        flat_part: The one of these parts whose fields some files have next to the parts.
        written_as: The `model_type` of the family that its models are written as, if it is another.
        defaults: Values of fields that such models leave out.
        renamed: Regular expressions of parts of names in files, and what is in their place here.
        gguf: How llama.cpp's files have such models, if it has them.
        layouts: How other trainers lay out the arrays of such models.
        classifier: The family of its classifiers, of texts where they are not reward models.
        headless: Other classes of transformers, of pretraining, whose files lack the head: a run
            begins with the rest (`fresh=("head.**",)`).
        input_mark: The field with the token that an input of another kind than text has in a text.
        input_texts: What conversations have in the place of texts that chat templates write, by
            these texts, where it is more than that token; `{field}` is the token of a field.
    """

    architecture: str
    template: Callable[[], Any]
    config: tuple[ConfigEntry, ...]
    weights: Callable[[Any], WeightMap]
    layers: LayerKinds | None = None
    other_weights: Callable[[Any], WeightMap] | None = None
    irrelevant: frozenset[str] = frozenset()
    unread: frozenset[str] = frozenset()
    skipped: tuple[str, ...] = (r"rotary_emb\.inv_freq$",)
    mtp_counts: tuple[str, ...] = ()
    mtp_tensors: tuple[str, ...] = ()
    copies: Mapping[str, str] = immutabledict({"lm_head.weight": "model.embed_tokens.weight"})
    prefix: str = ""
    length: str = "max_position_embeddings"
    nested: str = ""
    parts: tuple[str, ...] = ()
    flat_part: str = ""
    written_as: str = ""
    defaults: Mapping[str, Any] = immutabledict()
    renamed: tuple[tuple[str, str], ...] = ()
    gguf: GGUFMap | None = None
    layouts: tuple[Layout, ...] = ()
    classifier: "Family | None" = None
    headless: tuple[str, ...] = ()
    input_mark: str = ""
    input_texts: Mapping[str, str] = immutabledict()

    def read(self, values: Mapping[str, Any], *, allow_unknown_fields: bool = False) -> Any:
        """Return the config of the model that a `config.json` describes.

        Fields that are passed over, because they change no number or because that is allowed, are
        named by a warning, but for those that are in every file.

        Args:
            values: What the file says.
            allow_unknown_fields: Whether fields that could matter are passed over.

        Raises:
            ConfigError: A field is missing or unknown, or asks for what the model cannot do.
        """
        cfg, _ = self.read_all(values, allow_unknown_fields=allow_unknown_fields)
        return cfg

    def read_all(
        self, values: Mapping[str, Any], *, allow_unknown_fields: bool = False
    ) -> tuple[Any, CheckpointInfo]:
        """Return that config, and what else exports of the model are to say.

        Args:
            values: As `read`.
            allow_unknown_fields: As `read`.

        Raises:
            ConfigError: As `read`.
        """
        flat = self.flat(values)
        # Fields that an entry takes are crossed off; what is left was read by nobody.
        fields, cfg = Fields(flat), self.template()
        if self.layers is not None:
            # Layers of one kind are folded into one config, so that an entry can set a field of
            # all of them at once; `unfold` below makes them layers again.
            cfg, _ = self.layers.fold(cfg)
        for entry in self.config:
            cfg = entry.read(cfg, fields)
        if self.layers is not None:
            cfg = self.layers.unfold(cfg, fields)
        left = fields.unread()
        unknown = self._check_unread(left, allow_unknown_fields=allow_unknown_fields)
        kept = {name: value for name, value in left.items() if _is_kept_field(self._own(name))}
        if self.nested:  # others are of a model that is more than text
            kept = {name: value for name, value in kept.items() if name in IRRELEVANT}
        kept.pop(self.length, None)
        published = CheckpointInfo(
            family=self.written_as or str(values.get("model_type", "")),
            max_length=flat.get(self.length),
            fields=kept,
            unknown_fields=unknown,
        )
        return cfg, published

    def flat(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a `config.json`, with the nested ones among them."""
        # Nested ones last, as they are those of the text model.
        found = {**self.defaults, **values, **values.get(self.nested, {})}
        found.pop(self.nested, None)
        own = {*self.parts, *self.irrelevant, *_NOT_KEPT}
        beside = {name for name in found if name not in own and "." not in name}
        moved = {name: found.pop(name) for name in beside} if self.flat_part else {}
        for part in self.parts:
            below = found.pop(part, None) or {}
            if part == self.flat_part:
                below = {**moved, **below}
            found |= {f"{part}.{name}": value for name, value in below.items()}
        return found

    def with_parts(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return fields in which those of parts are together again, as `config.json` has them."""
        found: dict[str, Any] = {}
        for name, value in fields.items():
            part, dot, own = name.partition(".")
            if dot and part in self.parts:
                found.setdefault(part, {})[own] = value
            else:
                found[name] = value
        return found

    def _own(self, name: str) -> str:
        """Return a field's own name, without the part that it is in."""
        part, dot, own = name.partition(".")
        return own if dot and part in self.parts else name

    def mtp_layers(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        """Return regular expressions of the tensors that are for multi-token prediction alone.

        Args:
            values: What `config.json` says; layers are numbered on behind the last of the model.
        """
        flat = self.flat(values)
        counts = [flat.get(name) or 0 for name in self.mtp_counts]
        first, count = flat.get(NUM_LAYERS, 0), max(counts, default=0)
        numbered = (rf"^model\.layers\.{first + i}\." for i in range(count))
        return (*self.mtp_tensors, *numbered)

    def _check_unread(
        self, left: Mapping[str, Any], *, allow_unknown_fields: bool
    ) -> tuple[str, ...]:
        """Name the fields that no entry of the map has read; return those that could matter.

        Raises:
            ConfigError: There are some of these, and that is not allowed.
        """
        known = self.irrelevant | IRRELEVANT
        left = {name: value for name, value in left.items() if self._own(name) not in known}
        harmless, unknown = sorted_out(left, self.unread, self._own)
        if unknown and not allow_unknown_fields:
            shown = listed(f"{name}={left[name]!r}" for name in unknown)
            raise ConfigError(
                f"config.json has {len(unknown)} fields that this family's map does not know, so "
                f"that numbers might differ:\n{shown}",
                where=", ".join(unknown),
                hint="if they change no number, ignore them: --allow-unknown-fields, in Python "
                "allow_unknown_fields=True",
            )
        for what, names in (
            ("that no code of its family reads, or that are switched off", harmless),
            ("that are not known, so that numbers might differ", unknown),
        ):
            if names:
                shown = ", ".join(f"{name}={left[name]!r}" for name in names)
                text = f"config.json has fields {what}; they are ignored: {shown}"
                warnings.warn(text, stacklevel=2)
        return tuple(unknown)

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the fields of the `config.json` that describes a model.

        Raises:
            ConfigError: The model is not of this family: read again, the fields make another one.
        """
        if self.written_as:
            raise ConfigError(f"its models are written as {self.written_as}")
        template = self.template()
        # An encoder too: entries of the map would ask it for fields that it does not have.
        for part in ("", *getattr(template, "sized_parts", ())):
            own, expected = (type(getattr(one, part) if part else one) for one in (cfg, template))
            if not issubclass(own, expected):
                name = f"its {part}" if part else "it"
                raise ConfigError(f"{name} is a {own.__qualname__}, not a {expected.__qualname__}")
        cfg = canonical(cfg)
        values: dict[str, Any] = {}
        described = cfg
        if self.layers is not None:
            described, kinds = self.layers.fold(cfg)
            values = {NUM_LAYERS: len(kinds), **self.layers.write(kinds)}
        for entry in self.config:
            values |= entry.write(described)
        # Entries write what they know of. Whether that is all shows when it is read again.
        # Reading what was written is the only test that
        # says whether the map knows all of this model.
        changes = diff_config(self.normal(self.read(values)), self.normal(cfg))
        if changes:
            raise ConfigError(f"the model differs (+) from the family's:\n{format_diff(changes)}")
        return values

    def normal(self, cfg: Any) -> Any:
        """Return a config of the family in the one form that all have which make equal numbers."""
        cfg = canonical(cfg)
        for entry in self.config:
            cfg = entry.normal(cfg)
        return cfg

    def bind(
        self,
        cfg: Any,
        *,
        ignored: tuple[str, ...] = TRAINING_ONLY,
        specs: Any = None,
        names: Collection[str] = (),
    ) -> BoundMap:
        """Return the weight map of a model, applied to its state.

        Args:
            cfg: The model's config.
            ignored: Regular expressions of arrays that pretrained checkpoints lack.
            specs: Its `param_specs()`, where they are made already.
            names: Of the tensors that files have, where they are read.
        """
        plain = canonical(base_config(cfg))
        specs = cfg.build().param_specs() if specs is None else specs
        bound = BoundMap(self.weights(plain), specs, ignored=ignored)
        if self.other_weights is None or not names:
            return bound
        other = BoundMap(self.other_weights(plain), specs, ignored=ignored)
        return max(bound, other, key=lambda one: len(one.shapes.keys() & set(names)))


def _is_kept_field(name: str) -> bool:
    return name not in _NOT_KEPT and not name.startswith("_")


def family_named(name: str) -> Family:
    """Return the family of a `model_type`.

    Raises:
        ConfigError: No plugin that is installed brings it.
    """
    known = {record.name: record for record in plugin_host().records(HuggingFaceFamily)}
    if name not in known:
        raise ConfigError(
            f"nothing installed has models of type {name!r}",
            where="model_type",
            hint=suggest_names(name, known),
        )
    family: Family = known[name].family.resolve()
    if not isinstance(family, Family):
        raise known[name].wrong_field("family", family, "an axcore.interop.Family")
    return family


def family_for(values: Mapping[str, Any], kind: type | None = None) -> Family:
    """Return the family that reads a model.

    Several may have one `model_type`: one reads all of the model, and another a part of it.

    Args:
        values: What `config.json` says.
        kind: The Config class of the model that is wanted, which decides between them; None for
            all of the model.

    Raises:
        ConfigError: No plugin that is installed brings one.
    """
    name, named = values["model_type"], values.get("architectures") or ()
    records = plugin_host().records(HuggingFaceFamily)
    found = [family_named(one.name) for one in records if one.instead_of == name]
    whole = next((one for one in found if one.architecture in named), None)
    if whole is not None and (kind is None or type(whole.template()) is kind):
        return whole
    part = family_named(name)
    return part if whole is None or type(part.template()) is kind else whole


def family_of(cfg: Any) -> tuple[str, Family, dict[str, Any]]:
    """Return the family of a model: its `model_type`, itself, and the model's fields.

    That is read off the config. A model that several families can describe, as Llama's and
    Mistral's without a window are one, is of the family that it was read as; where it began here,
    of the first of them by name, and the core's go first, but for one that goes after another.

    Raises:
        ConfigError: It is of none.
    """
    reasons = []
    read_as = getattr(getattr(cfg, "published", None), "family", "")
    records = plugin_host().records(HuggingFaceFamily)
    # First what it was read as: a Mistral without a window is a Llama too, but for its tokenizer.
    order = sorted(
        records,
        key=lambda one: (
            one.model_type != read_as,
            one.plugin != "core",
            one.after or one.name,
            bool(one.after),
        ),
    )
    for record in order:
        family = family_named(record.name)
        try:
            if is_reward_model(cfg):
                family = reward_family(family)
            elif family.classifier and isinstance(cfg, type(family.classifier.template())):
                family = family.classifier
            values = family.write(cfg)
        # A family that cannot write the model says why, and only if none can is it of interest.
        except AxcoreError as error:
            reasons.append(f"{record.name}: {error.what}".rstrip())
            continue
        if read_as not in ("", record.model_type):
            warnings.warn(
                f"the model was read as {read_as}, which it no longer is; it is written as "
                f"{record.model_type}: {reasons[0]}",
                stacklevel=2,
            )
        return record.model_type, family, values
    raise ConfigError(
        "no family of pretrained checkpoints has such a model\n" + "\n".join(reasons),
        where="model",
        hint="export works for models that transformers has; take out what was added",
    )


GENERATION = "generation_config.json"
CARD = "README.md"
_LICENCE = re.compile(
    r"(LICEN[CS]E|NOTICE|COPYING|USE_POLICY|USAGE_POLICY)([._-].*)?", re.IGNORECASE
)
_TOKENIZER = re.compile(
    r"tokenizer\.(json|model)|tokenizer_config\.json|special_tokens_map\.json|added_tokens\.json"
    r"|vocab\.(json|txt)|merges\.txt|tekken\.json|chat_template\.(jinja|json)"
)
_READ = re.compile(r"\..*|config\.json|.*\.safetensors(\.index\.json)?")
_OTHER_WEIGHTS = re.compile(
    r".*\.(bin|bin\.index\.json|pth?|ckpt|h5|msgpack|ot|gguf|onnx|onnx_data|tflite|mlmodel)"
)


def name_of(folder: Path) -> str:
    """Return what a folder's model is called: on the Hub, if the folder is in its cache."""
    parent = folder.absolute().parent.parent.name  # models--OWNER--NAME/snapshots/COMMIT
    owner_and_name = parent.removeprefix("models--").split("--", maxsplit=1)
    return "/".join(owner_and_name) if parent.startswith("models--") else folder.absolute().name


def files_beside(folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the paths of files of a folder that exports have again, and the names of others.

    Weights in other formats are not named: the model has them.
    """
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    # Symbolic links count, as the Hub's cache consists of them; a pointer of Git LFS does not.
    kept = [name for name in names if _is_kept(name) and is_fetched(folder / name)]
    others = [name for name in names if name not in kept]
    left = [n for n in others if not (_READ.fullmatch(n) or _OTHER_WEIGHTS.fullmatch(n))]
    return tuple(str(folder / name) for name in kept), tuple(left)


def _is_kept(name: str) -> bool:
    is_named = name in (GENERATION, CARD)
    return is_named or bool(_LICENCE.fullmatch(name) or _TOKENIZER.fullmatch(name))


def exported_files(
    published: CheckpointInfo | None, tokens: Mapping[str, Any], files: Mapping[str, bytes] | None
) -> dict[str, bytes]:
    """Return the files of an export in addition to `config.json` and weights, by name.

    What the pretrained checkpoint had and the export lacks is named by a warning.

    Args:
        published: The model that was read; None where the model began here.
        tokens: The numbers of tokens by field, `eos_token_id` for one.
        files: Those that whoever exports brings, the tokenizer's among them; where None, the
            pretrained checkpoint's tokenizer is written.
    """
    paths = (
        {Path(path).name: Path(path).expanduser() for path in published.files} if published else {}
    )
    missing = sorted(name for name, path in paths.items() if not path.is_file())
    found = {name: path.read_bytes() for name, path in paths.items() if name not in missing}
    settings: dict[str, Any] = {}
    if found.pop(GENERATION, None) is not None:
        settings = read_json(paths[GENERATION], GENERATION, error=CheckpointError)
    card = found.pop(CARD, b"").decode()
    # A tokenizer that comes with the run replaces all of its files, since half of two make none.
    if files is not None and not _is_tokenizer_of(found, files):
        found = {name: data for name, data in found.items() if not _TOKENIZER.fullmatch(name)}
    if settings or tokens:
        found[GENERATION] = (json.dumps({**settings, **tokens}, indent=2) + "\n").encode()
    if published is not None:
        found[CARD] = _card(published, card).encode()
        missing += published.left_out
    if missing := sorted(set(missing) - set(files or ())):
        what = (published and published.name) or "the pretrained checkpoint"
        warnings.warn(f"the export lacks files that {what} had: {', '.join(missing)}", stacklevel=3)
    return {**found, **(files or {})}


def _is_tokenizer_of(found: Mapping[str, bytes], files: Mapping[str, bytes]) -> bool:
    """Whether the tokenizer among some files is that of the pretrained checkpoint."""
    names = [name for name in ("tokenizer.json", "tokenizer.model") if name in files]
    return bool(names) and all(files[name] == found.get(name) for name in names)


def _card(published: CheckpointInfo, text: str) -> str:
    """Return a model card that names the base, under the licence that the base's card names."""
    header = re.match(r"---\n(.*?\n)---\n", text, re.DOTALL)
    lines = header[1].splitlines() if header else []
    licence = [line for line in lines if re.match(r"licen[cs]e(_name|_link)?: *\S", line)]
    metadata = [f"base_model: {published.name}", *licence, "library_name: transformers"]
    return (
        "---\n" + "\n".join(metadata) + "\n---\n\n"
        f"A model of type {published.family}, written by axcore. Its weights began as those of "
        f"{published.name}, and may have been trained further.\n"
    )
