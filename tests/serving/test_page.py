"""The page at `/`, in a browser: it completes, chats, shows the server, runs nothing foreign."""

import asyncio
import re

import pytest
from driven_browser import opened
from model_server import serving

from axcore.serving import ApiKeys

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
