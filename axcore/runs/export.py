"""Make runs of pretrained checkpoints, and pretrained checkpoints or GGUF files of runs."""

import atexit
import json
import math
import shutil
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import jax

from axcore.checkpoint import Checkpointer
from axcore.config import evolve, field_names
from axcore.config.json_files import parse_json
from axcore.data import (
    ByteTokenizer,
    CharacterTokenizer,
    ChatText,
    Data,
    ExampleData,
    HuggingFaceTokenizer,
    SampleFiles,
    SentencePieceTokenizer,
    Text,
    Tokenizer,
    characters_in,
    gguf_tokenizer_files,
    gguf_vocabulary,
    has_other_tokenizer,
    other_tokenizer_files,
    published_end_ids,
    tokenizer_in,
)
from axcore.data.tokenizers.character_tokenizer import VOCABULARY, character_settings
from axcore.data.tokenizers.hugging_face_tokenizer import TOOL_TEMPLATE
from axcore.errors import CheckpointError, ConfigError
from axcore.interop import (
    DEFAULT_SHARD_BYTES,
    GGUFType,
    HuggingFace,
    PretrainedCheckpoint,
    adapter_format,
    check_base_is_unchanged,
    family_of,
    find_adapter_format,
    is_gguf,
    read_adapters,
    read_gguf,
    to_gguf,
    to_hugging_face,
)
from axcore.layers import num_soft_tokens_of
from axcore.models import MultimodalLM
from axcore.module import DType, DTypes
from axcore.plugins import Hardware
from axcore.progress import working
from axcore.runs.run import ANY_DEVICES, Run
from axcore.trainer import Trainer
from axcore.trainer.resolve import resolve
from axcore.trainer.run_directory.directory import locked_run_directory
from axcore.trainer.step import TrainState
from axcore.whole_files import read_regular

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
CHAT_TEMPLATE, PIECES, ADDED = "chat_template.jinja", "tokenizer.model", "added_tokens.json"
_OTHER_TOKENIZERS = (VOCABULARY, "vocab.txt")
_OWN_FIELDS = "trainer_fields"
"""The method of a model's config that returns the fields of its trainer, from the tokenizer's."""
_MAKE_ONE = f"add a {TOKENIZER}: transformers' AutoTokenizer makes one when it saves"
_LENGTH = 2048
"""Tokens of a row of a model that sets no limit."""
_TOKENS = ("bos", "eos", "pad")
_MARK = "<image>"
"""What `ByteTokenizer` calls the token of an input, where a folder with bytes has one."""


def import_run(
    folder: Path | str,
    directory: Path | str,
    *,
    dtype: DType | None = None,
    base: Path | str | None = None,
    allow_unknown_fields: bool = False,
    kind: type | None = None,
) -> Run:
    """Make a run of a pretrained checkpoint: to generate from, to evaluate, to export. Returns it.

    Args:
        folder: Contains the pretrained checkpoint, or adapters of one.
        directory: Of the run; it may not exist, or must be empty.
        dtype: What parameters become; as they are stored by default.
        base: The folder of the model that adapters correct; by default, what they name.
        allow_unknown_fields: Whether fields of `config.json` that could matter are ignored.
        kind: As `PretrainedCheckpoint` takes it.

    Raises:
        ConfigError: `config.json` describes what axcore has no model of.
        CheckpointError: A file or a tensor is not as it should be; nothing was written.
    """
    check_is_new(Path(directory))
    trainer, state = open_checkpoint(
        folder, dtype=dtype, base=base, allow_unknown_fields=allow_unknown_fields, kind=kind
    )
    return save_imported(trainer, state, Path(directory), Path(folder))


def check_is_new(directory: Path) -> None:
    """Check that nothing is in a directory.

    Raises:
        CheckpointError: There is something.
    """
    if directory.exists() and any(directory.iterdir()):
        raise CheckpointError(
            "there is something in the directory already",
            where=str(directory),
            hint="name a new directory",
        )


def open_checkpoint(
    folder: Path | str,
    *,
    dtype: DType | None = None,
    base: Path | str | None = None,
    on_host: bool = False,
    allow_unknown_fields: bool = False,
    kind: type | None = None,
) -> tuple[Trainer, Any]:
    """Return the trainer of a pretrained checkpoint, and the model's state; nothing is written.

    Args:
        folder: Contains the pretrained checkpoint, or adapters of one.
        dtype: What parameters become; as they are stored by default.
        base: The folder of the model that adapters correct; by default, what they name.
        on_host: Whether arrays stay in their files, for an engine to take one by one.
        allow_unknown_fields: Whether fields of `config.json` that could matter are ignored.
        kind: As `PretrainedCheckpoint` takes it.

    Raises:
        ConfigError: `config.json` describes what axcore has no model of.
        CheckpointError: A file or a tensor is not as it should be.
    """
    source = _source(Path(folder).expanduser(), base)
    source = evolve(source, allow_unknown_fields=allow_unknown_fields)
    published = PretrainedCheckpoint(
        source.path, allow_unknown_fields=allow_unknown_fields, kind=kind
    )
    cfg = with_dtype(trainer_config(published), dtype or published.dtype)
    if source.adapters is not None:
        cfg = _with_adapters(cfg, source, is_dtype_named=dtype is not None)
    trainer = Trainer(resolve(cfg, Hardware.detect()))
    specs = trainer.model.param_specs()
    plan = published.plan(trainer.config.model, adapters=source.adapters, specs=specs)
    wanted = trainer.compiler.abstract_state().model
    return trainer, (plan.lazy if on_host else plan.read)(wanted)


def trainer_config(published: PretrainedCheckpoint) -> Any:
    """Return the config of a trainer for the model in a folder, with its tokenizer."""
    tokenizer, length = checkpoint_tokenizer(published), published.max_length or _LENGTH
    # What a model is trained for and on, where that is not the next token of a text.
    own = getattr(published.config, _OWN_FIELDS, None)
    data = _data_with_inputs if isinstance(published.config, MultimodalLM.Config) else _text_data
    fields = own(tokenizer) if own else {"data": data(published, tokenizer, length)}
    fields["data"] = evolve(fields["data"], batch_size=math.lcm(8, jax.device_count()))
    return Trainer.Config(
        model=published.config,
        **fields,
        max_steps=1000,
        mesh=ANY_DEVICES,
    )


def _text_data(published: PretrainedCheckpoint, tokenizer: Tokenizer.Config, length: int) -> Any:
    return Data.Config(tokenizer=tokenizer, seq_len=length)


def _data_with_inputs(
    published: PretrainedCheckpoint, tokenizer: Tokenizer.Config, length: int
) -> Any:
    """Return data whose rows have the inputs that the model's encoder takes."""
    cfg = published.config
    names = (
        published.family.input_mark,
        f"{cfg.input_name}_token_id",
        f"{cfg.input_name}_token_index",
    )
    fields = published.published.fields
    marks = [fields[name] for name in names if name in fields]
    if isinstance(tokenizer, ByteTokenizer.Config):  # of which a folder has no file
        tokenizer = evolve(tokenizer, special_tokens=(_MARK,))
    name = tokenizer.build().token_name(marks[0]) if marks else None
    if isinstance(tokenizer, HuggingFaceTokenizer.Config):
        tokenizer = _with_input_texts(tokenizer, published)
    chat = ChatText.Config(
        tokenizer=tokenizer,
        length=length,
        num_soft_tokens=num_soft_tokens_of(cfg.decoder.embedding),
        **({} if name is None else {"soft_token": name}),
    )
    return ExampleData.Config(
        source=SampleFiles.Config(folder="."),
        features={cfg.input_name: cfg.encoder.input_feature(), "chat": chat},
    )


def _with_input_texts(
    tokenizer: HuggingFaceTokenizer.Config, published: PretrainedCheckpoint
) -> HuggingFaceTokenizer.Config:
    """Return a tokenizer whose conversations have what the family writes around an input."""
    fields, named = published.published.fields, tokenizer.build().token_name
    names = {name: named(one) for name, one in fields.items() if isinstance(one, int)}
    known = {name: one for name, one in names.items() if one is not None}
    try:
        texts = {
            written.format(**known): text.format(**known)
            for written, text in published.family.input_texts.items()
        }
    except KeyError:  # no token of a field: a model that began here says which is the input's alone
        return tokenizer
    return evolve(tokenizer, template_texts=texts)


def with_dtype(cfg: Any, dtype: DType) -> Any:
    """Return a trainer's config whose model keeps parameters in a dtype, and computes in it."""
    return evolve(cfg, model=evolve(cfg.model, dtypes=DTypes(param=dtype, compute=dtype)))


def _source(folder: Path, base: Path | str | None) -> HuggingFace.Config:
    """Return where a folder's weights are: its own, or its adapters' and their model's.

    Raises:
        CheckpointError: Adapters name no folder as their model, or a model has a base.
    """
    form = find_adapter_format(folder)
    if form is None and base is None:
        return HuggingFace.Config(path=str(folder))
    if form is None:
        raise CheckpointError(
            f"the folder contains no adapters that {base} could be the base of",
            where=str(folder),
            hint="leave out --base",
        )
    named = base or form.base(folder)
    path = named and Path(named).expanduser()
    if not path or not (path.is_dir() or is_gguf(path)):
        raise CheckpointError(
            f"the adapters are of {named or 'a model that they do not name'}, not a folder",
            where=str(folder),
            hint="name the folder of the model that they correct: --base FOLDER",
        )
    return HuggingFace.Config(path=str(named), adapters=str(folder))


def _with_adapters(cfg: Any, source: HuggingFace.Config, *, is_dtype_named: bool) -> Any:
    """Return a config whose model has the adapters of a source, and trains nothing else."""
    found = read_adapters(str(source.adapters), cfg.model)
    wide = found.dtypes - {"float32", "float16", "bfloat16"}
    if wide and not is_dtype_named:
        raise CheckpointError(
            f"the adapters are stored as {', '.join(sorted(wide))}, and are kept as float32",
            where=str(source.adapters),
            hint="say which dtype all are to become: --dtype float32",
        )
    learner = evolve(cfg.learner, trainable=found.trained)
    return evolve(cfg, model=found.config, learner=learner, init_from=source)


def save_imported(trainer: Trainer, state: Any, target: Path, source: Path) -> Run:
    """Write a new run directory, whole or not at all, with a model that was read from somewhere."""
    try:
        _save(trainer, state, target, {"imported_from": str(source.absolute())})
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)  # which was empty, or not there
        raise
    return Run(target)


def _save(trainer: Trainer, state: Any, target: Path, source: dict[str, str]) -> None:
    with locked_run_directory(target, trainer.config, source) as run:
        saver = Checkpointer.for_run(trainer.config.checkpoint, run.path)
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        with working(f"writing {target}", size), saver:
            saved: Any = TrainState(None, state, None, None)  # type: ignore[arg-type]
            saver.save(0, saved, {"run": run.identity.as_json()})


def export_run(
    run: Run,
    folder: Path | str,
    *,
    dtype: DType | None = None,
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
    merged: bool = False,
) -> str:
    """Write the model of a run as a published one, or its adapters; return what it has written.

    Args:
        run: The run.
        folder: Where to write; it may not exist, or must be empty.
        merged: Whether adapters are added to the weights; by default they are written alone, in
            the format of PEFT.
        dtype: Of all tensors; each array's own by default.
        max_shard_bytes: Size of a file of weights at most.

    Raises:
        ConfigError: No family of checkpoints has such a model, or there are no adapters to merge,
            or more than adapters was trained.
        CheckpointError: The run has no checkpoint, or the folder contains something.
    """
    cfg, state = run.trainer.config.model, run.state
    chat = _chat_of(run.trainer.data)
    tokenizer = getattr(chat or run.trainer.data, "tokenizer", None)
    tokenizer = tokenizer or _characters(run.trainer.data)
    corrections = adapter_format(cfg)
    if merged:
        cfg, state = _merged_model(cfg, state)
    elif corrections is not None:
        check_base_is_unchanged(
            run.config.init_from,
            cfg,
            where="init_from.adapters",
            hint="export the full model: --merged",
        )
        return corrections.write(
            folder,
            cfg,
            state,
            trained=run.config.learner.trainable,
            dtype=dtype,
            base=getattr(run.config.init_from, "path", None),
            files=_tokenizer_files(tokenizer),
        )
    cfg = _with_published(cfg, run.config.init_from)
    published = getattr(cfg, "published", None)
    lengths = [chat.config.length if chat else getattr(run.config.data, "seq_len", None)]
    if published is not None:  # rows may have been cut shorter to train on
        lengths.append(published.max_length)
    family = to_hugging_face(
        folder,
        cfg,
        state,
        dtype=dtype,
        max_shard_bytes=max_shard_bytes,
        max_length=max((one for one in lengths if one is not None), default=None),
        fields={**_token_ids(tokenizer), **_input_mark(cfg, chat)},
        files=_tokenizer_files(tokenizer),
    )
    return f"a model of type {family}"


def _with_published(cfg: Any, source: Any) -> Any:
    """Return a model's config with the checkpoint that its weights began as, if it is known.

    A model that was built here, and then began with published weights, does not hold that itself.
    """
    is_named = isinstance(source, HuggingFace.Config) and "published" in field_names(cfg)
    if not is_named or cfg.published is not None:
        return cfg
    if not Path(source.path).exists():
        warnings.warn(
            f"{source.path}, whose weights the run began with, is not there: the export lacks its "
            "settings for generation, its licence, and everything else but weights",
            stacklevel=3,
        )
        return cfg
    published = PretrainedCheckpoint(
        source.path, allow_unknown_fields=source.allow_unknown_fields, kind=type(cfg)
    )
    return evolve(cfg, published=published.published)


def _merged_model(cfg: Any, state: Any) -> tuple[Any, Any]:
    """Return config and state of a model with its adapters added to its weights.

    Raises:
        ConfigError: It has none.
    """
    corrections = adapter_format(cfg)
    if corrections is None:
        raise ConfigError("the model has no adapters to merge", hint="leave out --merged")
    return corrections.merged(cfg, state)


def checkpoint_tokenizer(published: PretrainedCheckpoint) -> Tokenizer.Config:
    """Return the config of the tokenizer in a folder, or in a GGUF file.

    Where there is none, and the vocabulary has the size of that of bytes, it is that.
    """
    folder = published.folder
    if published.gguf is not None:
        return tokenizer_in(_unpacked_tokenizer(published.gguf.content.path.resolve()))
    if (folder / TOKENIZER).is_file():
        return tokenizer_in(folder)
    if (folder / PIECES).is_file():
        return _pieces(folder)
    # Models of text have one with pieces, whose merges are in another file.
    if hasattr(published.config, _OWN_FIELDS) and (folder / VOCABULARY).is_file():
        return characters_in(folder)
    if has_other_tokenizer(folder):
        return tokenizer_in(_unpacked_tokenizer(folder.resolve()))
    if others := [name for name in _OTHER_TOKENIZERS if (folder / name).is_file()]:
        raise CheckpointError(
            f"the folder's tokenizer is {', '.join(others)}, which is not read",
            where=str(folder),
            hint=_MAKE_ONE,
        )
    if getattr(published.config, "vocab_size", None) != ByteTokenizer.Config().build().vocab_size:
        raise CheckpointError(
            "the folder has no tokenizer",
            where=str(folder),
            hint=f"add its {TOKENIZER}; for the weights alone: ax.from_hugging_face",
        )
    return ByteTokenizer.Config()


@cache
def _unpacked_tokenizer(path: Path) -> Path:
    """Return a folder with a tokenizer that is in other files; it is there as long as this process.

    A tokenizer is read from files; a run has copies of them.
    """
    files = (
        gguf_tokenizer_files(read_gguf(path).metadata, str(path))
        if is_gguf(path)
        else other_tokenizer_files(path)
    )
    folder = Path(tempfile.mkdtemp(prefix="axcore-tokenizer-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, data in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def _pieces(folder: Path) -> Tokenizer.Config:
    """Return the config of a folder's SentencePiece model, if that is all of its tokenizer."""
    cfg = SentencePieceTokenizer.Config(path=str(folder / PIECES))
    added = (folder / ADDED).is_file() or set(published_end_ids(folder)) - set(cfg.build().end_ids)
    if added:
        raise CheckpointError(
            f"the folder's {PIECES} lacks tokens that files next to it add",
            where=str(folder),
            hint=_MAKE_ONE,
        )
    return cfg


def _token_ids(tokenizer: Any) -> dict[str, Any]:
    """Return the token ids that a checkpoint's files name, those that end a text as a list."""
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_id", None) for name in _TOKENS}
    if ids["pad_token_id"] == ids["eos_token_id"]:
        del ids["pad_token_id"]  # transformers would train that token no more
    if len(getattr(tokenizer, "end_ids", ())) > 1:
        ids["eos_token_id"] = list(tokenizer.end_ids)
    return {name: number for name, number in ids.items() if number is not None}


def _chat_of(data: Any) -> ChatText | None:
    """Return the feature of data whose rows are conversations, if they are."""
    features = getattr(data, "features", {}).values()
    return next((one for one in features if isinstance(one, ChatText)), None)


def _input_mark(cfg: Any, chat: ChatText | None) -> dict[str, Any]:
    """Return the field with the token that an input has in a text, where there are inputs."""
    if chat is None or not isinstance(cfg, MultimodalLM.Config):
        return {}
    _, family, _ = family_of(cfg)
    return {family.input_mark: chat.mark} if family.input_mark else {}


def _characters(data: Any) -> CharacterTokenizer | None:
    """Return the characters that texts of examples become, if they do."""
    features = getattr(data, "features", {}).values()
    found = [one.tokenizer for one in features if isinstance(one, Text)]
    return next((one for one in found if isinstance(one, CharacterTokenizer)), None)


def _tokenizer_files(tokenizer: Any) -> dict[str, bytes]:
    if isinstance(tokenizer, CharacterTokenizer):
        said_of_it = _rendered(character_settings(tokenizer))
        return {VOCABULARY: _content(tokenizer.config.path), TOKENIZER_CONFIG: said_of_it}
    if isinstance(tokenizer, SentencePieceTokenizer):
        return {PIECES: _content(tokenizer.config.path)}
    if not isinstance(tokenizer, HuggingFaceTokenizer):
        return {}
    cfg: Any = tokenizer.config
    names = {f"{name}_token": getattr(cfg, f"{name}_token") for name in _TOKENS}
    said = {name: token for name, token in names.items() if token is not None}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if cfg.settings_path is not None:
        settings = parse_json(_content(cfg.settings_path))
    files = {TOKENIZER: _content(cfg.path), TOKENIZER_CONFIG: _rendered({**settings, **said})}
    if cfg.chat_template_path is not None:
        files[CHAT_TEMPLATE] = _content(cfg.chat_template_path)
    if cfg.tool_template_path is not None:
        files[TOOL_TEMPLATE] = _content(cfg.tool_template_path)
    return files


def _content(path: str) -> bytes:
    return read_regular(Path(path).expanduser())


def _rendered(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()


def export_gguf(
    run: Run, path: Path | str, *, dtype: GGUFType | None = None, merged: bool = False
) -> str:
    """Write the model of a run and its tokenizer as one GGUF file; return what it has written.

    Args:
        run: The run.
        path: Where to write; it may not exist.
        dtype: Of matrices; each array's own by default.
        merged: Whether adapters are added to the weights.

    Raises:
        ConfigError: llama.cpp has no such model or no such tokenizer; or adapters are to be merged
            and there are none, or there are some and they are not to be.
        CheckpointError: The run has no checkpoint, or the file exists.
    """
    cfg: Any = run.trainer.config.model
    if not merged and adapter_format(cfg) is not None:
        raise ConfigError(
            "the run trains adapters, and a GGUF file contains a full model", hint="--merged"
        )
    tokenizer = getattr(run.trainer.data, "tokenizer", None)
    vocabulary, note = gguf_vocabulary(tokenizer, cfg.vocab_size)
    length = getattr(run.config.data, "seq_len", None)
    if length is None:
        raise ConfigError("a GGUF file says how long rows are; the run's data has no seq_len")
    state = run.state
    if merged:
        cfg, state = _merged_model(cfg, state)
    kind = to_gguf(path, cfg, state, vocabulary=vocabulary, max_length=length, dtype=dtype)
    return f"a model of type {kind} for llama.cpp" + (f"; {note}" if note else "")
