"""The page at `/`, in a browser: it completes, chats, shows the server, runs nothing foreign."""

import asyncio
import re

import attrs
import numpy as np
import pytest
from driven_browser import opened
from model_server import SMALL, byte_tokenizer, serving, small_engine
from point_model import NUM_SOFT, point_model

from axcore.data import ByteTokenizer, Feature, FeatureArray
from axcore.inference import Engine
from axcore.inference.adapters import EngineAdapter
from axcore.serving import ApiKeys
from axcore.serving.inputs import InputReader

pytestmark = pytest.mark.slow


def in_browser(url, work):
    """Runs `work(page)`; the page's console may not complain."""

    async def run():
        async with opened(url) as page:
            await work(page)
            assert page.complaints == []

    asyncio.run(run())


# An answer of this seed does not end by itself before its 20 tokens.
ASK = (
    "$('prompt').value = {!r}; $('tokens').value = 20; $('seed').value = 1; "
    "$('form').requestSubmit()"
)
READY = "$('state').textContent.startsWith('ready')"


def test_a_text_is_continued_and_the_server_is_shown(server):
    async def work(page):
        await page.show_as(width=1200)
        await page.wait_for(READY)
        assert await page.run("$('model').textContent") == "small"
        await page.run("choose(false)")
        await page.run(ASK.format("ab"))
        await page.wait_for("!!document.querySelector('.meta')")
        assert await page.run("document.querySelector('.given').textContent") == "ab"
        assert "20 tokens" in await page.run("document.querySelector('.meta').textContent")
        await page.wait_for("rates.some((rate) => rate > 0)")
        assert "of 4 at once" in await page.run("$('running').textContent")

    in_browser(server.url, work)


def test_a_conversation_is_answered_with_all_turns_before(chat_server):
    async def work(page):
        await page.wait_for(f"{READY} && isChat")
        for number in (1, 2):
            await page.run(ASK.format("<img src=x>"))
            await page.wait_for(f"document.querySelectorAll('.meta').length === {number}")
        assert await page.run("messages.map((one) => one.role).join()") == (
            "user,assistant,user,assistant"
        )
        assert await page.run("document.querySelectorAll('#turns img').length") == 0

    in_browser(chat_server.url, work)


@pytest.fixture(scope="module")
def adapted():
    """A server of a model and of two adapters, one of which has a long name."""
    cfg = attrs.evolve(SMALL, num_adapters=2)
    with small_engine(byte_tokenizer(), cfg) as engine, serving(engine) as server:
        server.served.adapters = ("poems", "instructions-of-a-long-name-v2")
        for name in server.served.adapters:
            engine.set_adapter(name, EngineAdapter({}, name))
        yield server


def test_an_adapter_can_be_chosen_and_answers(adapted, monkeypatch):
    asked, submit = [], Engine.submit

    def submit_kept(engine, request):
        asked.append(request.adapter)
        return submit(engine, request)

    monkeypatch.setattr(Engine, "submit", submit_kept)

    async def work(page):
        await page.wait_for(f"{READY} && !$('choice-label').hidden")
        names = await page.run("[...$('choice').options].map((one) => one.value).join()")
        assert names == "small,poems,instructions-of-a-long-name-v2"
        for number, name in enumerate(("small", "poems"), start=1):
            await page.run(f"$('choice').value = {name!r}; {ASK.format('ab')}")
            await page.wait_for(f"document.querySelectorAll('.meta').length === {number}")
            assert await page.run(
                f"[...document.querySelectorAll('.meta')].pop().textContent.startsWith({name!r})"
            )

    in_browser(adapted.url, work)
    assert asked == [None, "poems"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1200])
def test_a_choice_of_adapters_fits_the_page(adapted, scheme, width, tmp_path):
    async def work(page):
        await page.show_as(width=width, scheme=scheme)
        await page.wait_for(f"{READY} && !$('choice-label').hidden")
        await page.run("$('choice').value = 'instructions-of-a-long-name-v2'")
        await page.run(ASK.format("ab"))
        await page.wait_for("!!document.querySelector('.meta')")
        assert await page.run("document.documentElement.scrollWidth") == width
        await page.picture(tmp_path / f"{scheme}-{width}.png")

    in_browser(adapted.url, work)


def test_there_is_no_choice_of_one_model(server):
    async def work(page):
        await page.wait_for(f"{READY} && hasModels")
        assert await page.run("$('choice-label').hidden")

    in_browser(server.url, work)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone_and_follows_the_color_scheme(server, scheme, tmp_path):
    async def work(page):
        await page.show_as(width=400, scheme=scheme)
        await page.wait_for(READY)
        assert await page.run("document.documentElement.scrollWidth") == 400
        ground = await page.run("getComputedStyle(document.body).backgroundColor")
        parts = [int(part) for part in re.findall(r"\d+", ground)]
        assert (sum(parts) < 3 * 128) == (scheme == "dark")
        await page.picture(tmp_path / f"{scheme}.png")

    in_browser(server.url, work)


def test_the_page_asks_for_a_key_where_one_is_needed(engine):
    async def work(page):
        await page.wait_for("!$('key-label').hidden")
        await page.run("$('key').value = 'key-of-somebody'; look()")
        await page.wait_for(READY)
        page.complaints.clear()  # the browser reports each 401

    with serving(engine, keys=ApiKeys(("key-of-somebody",))) as server:
        in_browser(server.url, work)


def test_a_script_that_is_not_the_pages_own_does_not_run(server):
    async def work(page):
        await page.run(
            "document.body.append(Object.assign(document.createElement('script'), "
            "{textContent: 'window.foreign = true'}))"
        )
        assert await page.run("window.foreign === undefined")
        page.complaints.clear()  # the browser reports what it refused

    in_browser(server.url, work)


PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9"
    "awAAAABJRU5ErkJggg=="
)


def test_a_model_of_text_is_offered_no_picture(chat_server):
    async def work(page):
        await page.wait_for(f"{READY} && isChat")
        assert await page.run("$('attach').hidden")

    in_browser(chat_server.url, work)


def test_a_picture_is_shown_and_sent_with_its_text(picture_server):
    async def work(page):
        await page.wait_for(f"{READY} && isChat && !$('attach').hidden")
        await page.run(f"attach({PIXEL!r})")
        assert await page.run("document.querySelectorAll('#pictures img').length") == 1
        await page.run(ASK.format("what is it?"))
        await page.wait_for("!!document.querySelector('.meta')")
        assert await page.run("document.querySelector('.turn.failed')") is None
        assert await page.run("document.querySelectorAll('.turn.user img')[0].naturalWidth") == 1
        assert await page.run("messages[0].content.map((one) => one.type).join()") == (
            "image_url,text"
        )
        assert await page.run("$('pictures').hidden")

    in_browser(picture_server.url, work)


@pytest.fixture(scope="module")
def picture_server():
    """A server of a model that reads one file of any content as a point."""
    tokenizer = ByteTokenizer.Config(special_tokens=("<point>",)).build()
    model = point_model(tokenizer.vocab_size).build()
    with Engine(model, model.init(5), tokenizer, SMALL) as engine, serving(engine) as server:
        server.served.reader = InputReader(FileSize.Config().build(), "<point>", 259, NUM_SOFT)
        yield server


class FileSize(Feature):
    """The size of a file as a point."""

    part_type = "image_url"
    fields = ("file",)

    def arrays(self):
        return {"": FeatureArray((3,), "float32")}

    def make(self, record, rng):
        return {"": np.full(3, len(record["file"]) / 100, np.float32)}
