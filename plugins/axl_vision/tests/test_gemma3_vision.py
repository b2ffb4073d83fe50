"""Gemma 3 with pictures: what a published folder says is what is read, trained, written, served."""

import base64
import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_attention.models import gemma3
from axl_vision.models import gemma3_vision
from axl_vision.models.gemma3_vision import GEMMA3_VISION
from chat_tokenizer import write_chat_tokenizer
from commands import call
from PIL import Image

from axcore.config import evolve, update_config
from axcore.data import ByteTokenizer
from axcore.errors import ConfigError
from axcore.experiments.named import load_experiment, load_resolved
from axcore.inference import EngineConfig, Generator, Request, Sampling
from axcore.interop import PretrainedCheckpoint, family_for, from_hugging_face, to_hugging_face
from axcore.layers import FIRST_SOFT_TOKEN
from axcore.models import CausalLM, MultimodalLM
from axcore.module import count_params, functional
from axcore.plugins import Hardware
from axcore.runs import export_run, load_run, open_model
from axcore.runs.export import trainer_config
from axcore.serving.config import ServerConfig
from axcore.serving.inputs import ContentPart, marked
from axcore.serving.startup import start_engine
from axcore.testing import trainer_on

TEMPLATE = (
    "{% for message in messages %}"
    "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] | trim }}{% else %}"
    "{% for item in message['content'] %}"
    "{% if item['type'] == 'image' %}{{ '<start_of_image>' }}"
    "{% elif item['type'] == 'text' %}{{ item['text'] | trim }}{% endif %}"
    "{% endfor %}{% endif %}{{ '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
"""As that of Gemma 3: it reads contents that are text, and lists of parts."""

SPECIAL = (
    *("<start_of_turn>", "<end_of_turn>"),
    *("<start_of_image>", "<image_soft_token>", "<end_of_image>"),
)
VOCAB = 256 + len(SPECIAL)
BEGIN, SOFT, END = range(VOCAB - 3, VOCAB)
MARKS = {"boi_token_index": BEGIN, "image_token_index": SOFT, "eoi_token_index": END}
WRITTEN = "\n\n<start_of_image><image_soft_token><end_of_image>\n\n"


def small():
    text = update_config(gemma3("toy"), {"vocab_size": VOCAB})
    return gemma3_vision(text, "toy", image_size=16, patch_size=4, num_soft_tokens=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gemma") / "model"
    to_hugging_face(folder, small(), small().build().init(0), fields=MARKS)
    return write_chat_tokenizer(folder, TEMPLATE, special=SPECIAL, eos="<end_of_turn>")


def test_a_config_is_read_as_it_was_written():
    values = GEMMA3_VISION.write(small())
    assert values["mm_tokens_per_image"] == 4
    assert GEMMA3_VISION.normal(GEMMA3_VISION.read(values)) == GEMMA3_VISION.normal(small())


@pytest.mark.parametrize("count", [3, 9, 64])
def test_soft_tokens_that_are_no_squares_of_patches_are_refused(count):
    values = {**GEMMA3_VISION.write(small()), "mm_tokens_per_image": count}
    with pytest.raises(ConfigError, match=f"{count} soft tokens of a picture, which has 4 x 4"):
        GEMMA3_VISION.read(values)


@pytest.mark.parametrize(("size", "count"), [("4b", 4_300_079_472), ("27b", 27_432_406_640)])
def test_parameters_are_as_many_as_published(size, count):
    model = gemma3_vision(gemma3(size)).build()
    assert count_params(model.param_specs(), trainable_only=False) == count
    assert model.num_soft_tokens == 256


def test_a_soft_token_is_of_a_square_of_patches():
    encoder = small().encoder
    assert (encoder.grid, encoder.pooled, encoder.num_tokens) == ((4, 4), 2, 4)
    with pytest.raises(ConfigError, match="4 x 4 patches, and a soft token is of 3 x 3"):
        evolve(encoder, pooled=3, dim=8).build()


def test_all_of_the_folder_is_read_where_nothing_else_is_asked_for(folder):
    published = PretrainedCheckpoint(folder)
    assert published.family is GEMMA3_VISION
    assert GEMMA3_VISION.normal(published.config) == GEMMA3_VISION.normal(small())
    kept = {name: published.published.fields[name] for name in MARKS}
    assert kept == MARKS


def test_the_text_part_is_read_where_a_language_model_is_wanted(folder):
    whole, part = from_hugging_face(folder), from_hugging_face(folder, kind=CausalLM.Config)
    assert type(part.config) is CausalLM.Config
    assert part.config.published.family == "gemma3_text"
    np.testing.assert_array_equal(
        part.state["decoder"]["embedding"]["weight"],
        whole.state["decoder"]["embedding"]["embedding"]["embedding"]["weight"],
    )


def test_a_file_that_does_not_name_the_class_is_read_as_its_text_part(folder):
    values = json.loads((folder / "config.json").read_text())
    assert family_for(values) is GEMMA3_VISION
    assert family_for(values, MultimodalLM.Config) is GEMMA3_VISION
    for architectures in ([], ["Gemma3ForSequenceClassification"]):
        family = family_for({**values, "architectures": architectures})
        assert family.written_as == "gemma3_text"


def test_an_export_is_the_folder_again(folder, tmp_path):
    read = from_hugging_face(folder)
    assert to_hugging_face(tmp_path / "again", read.config, read.state) == "gemma3"
    first, second = (
        json.loads((one / "config.json").read_text()) for one in (folder, tmp_path / "again")
    )
    assert first == second
    assert first["architectures"] == ["Gemma3ForConditionalGeneration"]


def chat(folder):
    return trainer_config(PretrainedCheckpoint(folder)).data.features["chat"]


def test_a_picture_in_a_chat_is_written_as_the_processor_does(folder):
    feature = evolve(chat(folder), length=64).build()
    assert feature.config.soft_token == "<image_soft_token>"
    for content in (
        [{"type": "image"}, {"type": "text", "text": "what?"}],
        "<start_of_image>what?",
        "<image_soft_token>what?",
    ):
        turns = [{"role": "user", "content": content}, {"role": "assistant", "content": "a dog"}]
        row = feature.make({"messages": json.dumps(turns)}, None)
        tokens = row["tokens"].tolist()
        place = tokens.index(BEGIN)
        assert bytes(tokens[place - 3 : place]) == b"\n\n\n"  # one ends the line of the role
        assert [*range(FIRST_SOFT_TOKEN, FIRST_SOFT_TOKEN + 4), END] == tokens[
            place + 1 : place + 6
        ]
        learned = row["targets"][row["loss_weights"] > 0]
        assert bytes(learned[:-1].tolist()) == b"a dog"


def test_the_text_part_is_a_run_of_its_own_where_that_is_asked_for(folder, tmp_path):
    call("convert", f"hf:{folder}", tmp_path / "text", "--text-part")
    call("convert", f"hf:{folder}", tmp_path / "whole")
    kinds = [type(load_run(tmp_path / one).config.model) for one in ("text", "whole")]
    assert kinds == [CausalLM.Config, MultimodalLM.Config]
    call("convert", tmp_path / "text", f"hf:{tmp_path / 'written'}")
    values = json.loads((tmp_path / "written" / "config.json").read_text())
    assert values["model_type"] == "gemma3_text"


def file_of(value):
    file = io.BytesIO()
    Image.fromarray(np.full((20, 30, 3), value, np.uint8)).save(file, "png")
    return file.getvalue()


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    """Pictures, each with a conversation about it."""
    pictures = tmp_path_factory.mktemp("pictures")
    for value in range(0, 240, 10):
        (pictures / f"{value}.png").write_bytes(file_of(value))
        asked = [{"type": "image"}, {"type": "text", "text": "which?"}]
        answer = "dark" if value < 120 else "light"
        turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
        (pictures / f"{value}.json").write_text(json.dumps({"messages": turns}))
    return pictures


def overrides(folder, source):
    rows = [
        'data.features["chat"].length=64',
        "data.batch_size=16",
        "max_steps=30",
        "learner.schedule.peak=0.003",
    ]
    return [f"init_from.path={folder}", *source, *rows]


@pytest.mark.slow
def test_a_published_folder_is_trained_on_chats_about_pictures(folder, chats, tmp_path):
    asked = overrides(folder, [f"data.source.folder={chats}"])
    cfg = evolve(load_experiment("multimodal-sft", asked), mesh={"fsdp": 1})
    trainer = trainer_on(cfg, 1)
    trainer.run(tmp_path / "run", quiet=True)
    run = load_run(tmp_path / "run")
    losses = run.metrics["train"]["loss"]
    assert losses[-1] < losses[0] - 1
    assert export_run(run, tmp_path / "written") == "a model of type gemma3"
    values = json.loads((tmp_path / "written" / "config.json").read_text())
    assert {name: values[name] for name in MARKS} == MARKS


def test_text_alone_trains_its_text_part(folder):
    cfg = load_experiment("sft", [f"init_from.path={folder}", "data.source.path=chats.jsonl"])
    assert type(cfg.model) is CausalLM.Config
    wanted = jax.eval_shape(lambda: cfg.model.build().init(0))
    assert jax.tree.leaves(cfg.init_from.build().plan(cfg.model).read(wanted))


def test_the_text_part_teaches_a_model_of_text(folder):
    asked = [f"init_from.path={folder}", "data.source.path=chats.jsonl"]
    changes = (f"distill(teacher={folder})",)
    cfg = load_resolved("sft", asked, changes=changes, hardware=Hardware.parse("cpu-1")).config
    assert type(cfg.task.teacher.model) is CausalLM.Config


def test_a_base_of_text_alone_is_refused(folder, tmp_path):
    read = from_hugging_face(folder, kind=CausalLM.Config)
    to_hugging_face(tmp_path / "text", read.config, read.state)
    with pytest.raises(ConfigError, match="the base reads text alone"):
        load_experiment("multimodal-sft", [f"init_from.path={tmp_path / 'text'}"])


def picture(value):
    url = "data:image/png;base64," + base64.b64encode(file_of(value)).decode()
    return ContentPart("image_url", "messages[0].content[0].image_url.url", url)


@pytest.mark.slow
def test_text_alone_is_continued_where_a_picture_has_more_tokens_than_a_call():
    text = update_config(gemma3("toy"), {"vocab_size": VOCAB})
    cfg = gemma3_vision(text, "toy", image_size=64, patch_size=4, num_soft_tokens=256)
    model, tokenizer = cfg.build(), ByteTokenizer.Config().build()
    generator = Generator(model, model.init(0), tokenizer, context=300)
    (found,) = generator.generate("ab", max_tokens=3, sampling=Sampling(temperature=0))
    assert found.is_ended or found.num_tokens == 3


@pytest.mark.slow
def test_a_published_folder_answers_about_pictures(folder):
    opened = open_model(folder)
    cfg = EngineConfig(max_num_seqs=2, max_length=64, batch_size_buckets=(2,))
    served = start_engine(opened, ServerConfig(engine=cfg))
    try:
        reader = served.reader
        assert reader.takes_parts
        messages = [{"role": "user", "content": (picture(9), " what?")}]
        texts, parts = marked(messages, reader)
        text = served.tokenizer.known_chat_template.render(texts, add_generation_prompt=True)
        assert text == (f"<start_of_turn>user\n{WRITTEN}what?<end_of_turn>\n<start_of_turn>model\n")
        tokens = reader.placed(served.tokenizer.encode_rendered(text), len(parts))
        assert sum(token >= FIRST_SOFT_TOKEN for token in tokens) == 4
        found = reader.read(parts[0], served.limits)
        asked = Request(
            prompt=tokens,
            sampling=Sampling(temperature=0),
            inputs=(found,),
            max_tokens=4,
            ignores_end=True,
        )
        answer = [token.id for token in served.engine.submit(asked).result().tokens]
        images = jnp.asarray(found.value)[None]
        for _ in answer:
            row = jnp.asarray([tokens], jnp.int32)
            last = functional(opened.model, opened.state, row, inputs=images, method="logits")[0]
            tokens = (*tokens, int(last[0, -1].argmax()))
        assert answer == list(tokens[-4:])
    finally:
        served.engine.close()
