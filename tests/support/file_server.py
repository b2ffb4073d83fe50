"""A web server of the files of a folder on this machine, whose answers can be made to go wrong."""

import contextlib
import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote


@contextlib.contextmanager
def file_server(folder):
    """Serves a folder with ranges, etags and lists; `server.fault(method, path)` says what fails.

    busy        answers 503
    refused     answers 403
    cut         says how long the answer is, sends half of it and closes the connection
    truncated   sends half of the answer as if that were all
    no ranges   sends the full file, whatever range was asked for
    a function  is called before the answer
    """
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads, server.folder = True, folder
    server.fault = lambda method, path: None
    server.asked = []
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def fail_first(server, kind, times, method="GET"):
    """Makes the first requests of a method fail; returns how many failures are left, in a list."""
    left, counting = [times], threading.Lock()

    def fault(asked, path):
        with counting:
            if asked != method or not left[0]:
                return None
            left[0] -= 1
            return kind

    server.fault = fault
    return left


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_one_request(self):
        with contextlib.suppress(ConnectionError):
            super().handle_one_request()

    def _handle(self):
        self.server.asked.append((self.command, self.path))
        fault = self.server.fault(self.command, self.path)
        if callable(fault):
            fault = fault()
        if fault in ("busy", "refused"):
            return self._send(503 if fault == "busy" else 403, b"", {})
        file = self.server.folder / unquote(self.path).lstrip("/")
        if file.is_dir():
            links = "".join(f'<a href="{one.name}{"/" * one.is_dir()}">' for one in file.iterdir())
            return self._send(200, links.encode(), {"Content-Type": "text/html"})
        if not file.exists():
            return self._send(404, b"", {})
        content = file.read_bytes()
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()[:16]}"'}
        asked = self.headers.get("Range")
        if not asked or fault == "no ranges":
            return self._send(200, content, headers, fault)
        begin, _, end = asked.removeprefix("bytes=").partition("-")
        return self._send(206, content[int(begin) : int(end) + 1], headers, fault)

    do_GET = do_HEAD = _handle  # noqa: N815

    def _send(self, status, content, headers, fault=None):
        if fault == "truncated":
            content = content[: len(content) // 2]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault == "cut":
            self.close_connection = True
            content = content[: len(content) // 2]
        self.wfile.write(content)

    def log_message(self, *arguments):
        """Stays quiet."""
