"""A headless browser that a test drives: it opens pages, runs scripts in them, takes pictures.

It speaks the DevTools protocol over a WebSocket. The test is skipped where there is no browser.
"""

import asyncio
import base64
import contextlib
import itertools
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
from browser import FLAGS, browser_path


class Page:
    """An open page.

    Attributes:
        complaints: What its console said of errors.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._numbers = socket, itertools.count(1)
        self.complaints: list[str] = []

    async def send(self, method: str, **values: Any) -> dict[str, Any]:
        """Returns the result of a command."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": values})
        while True:
            found = await self._socket.receive_json(timeout=60)
            if found.get("method") == "Log.entryAdded":
                self.complaints.append(found["params"]["entry"]["text"])
            if found.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(str(found["params"]["exceptionDetails"]))
            if found.get("id") == number:
                assert "error" not in found, found
                result: dict[str, Any] = found["result"]
                return result

    async def run(self, script: str) -> Any:
        """Returns the value of an expression in the page."""
        found = await self.send("Runtime.evaluate", expression=script, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def wait_for(self, script: str, seconds: float = 30) -> Any:
        """Returns the value of an expression as soon as it is true."""
        deadline = time.monotonic() + seconds
        while not (value := await self.run(script)):
            assert time.monotonic() < deadline, f"never true: {script}"
            await asyncio.sleep(0.05)
        return value

    async def show_as(self, *, width: int, height: int = 800, scheme: str = "light") -> None:
        """Gives the window a size and a color scheme."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        await self.send("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.send("Emulation.setEmulatedMedia", features=features)

    async def picture(self, path: Path) -> None:
        """Writes a picture of the window."""
        found = await self.send("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(found["data"]))


@contextlib.asynccontextmanager
async def opened(address: str):
    """Yields a page of an address."""
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as folder:
        command = [browser_path(), *FLAGS, "--remote-debugging-port=0", f"--user-data-dir={folder}"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen([*command, "about:blank"], **quiet)
        try:
            port = await _port(Path(folder) / "DevToolsActivePort")
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as found:
                    pages = await found.json()
                url = next(one["webSocketDebuggerUrl"] for one in pages if one["type"] == "page")
                async with session.ws_connect(url, max_msg_size=0) as socket:
                    page = Page(socket)
                    for domain in ("Page", "Runtime", "Log"):
                        await page.send(f"{domain}.enable")
                    await page.send("Page.navigate", url=address)
                    await page.wait_for(
                        f"document.readyState === 'complete' && location.href === {address!r}"
                    )
                    yield page
        finally:
            process.kill()
            process.wait()


async def _port(path: Path) -> int:
    deadline = time.monotonic() + 60
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, "the browser does not start"
        await asyncio.sleep(0.05)
    return int(path.read_text().splitlines()[0])
