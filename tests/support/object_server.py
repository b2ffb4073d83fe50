"""An S3 server on this machine, and a proxy before it that injects faults into real connections."""

import collections
import contextlib
import http.client
import logging
import socket
import struct
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=anyone/20260101/us-east-1/s3/aws4_request"}
BUSY = b"<Error><Code>ServiceUnavailable</Code><Message>injected</Message></Error>"


def environment(port):
    """What a process needs to reach the server at a port."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "anyone",
        "AWS_SECRET_ACCESS_KEY": "anything",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


@contextlib.contextmanager
def object_server(host="127.0.0.1"):
    """Runs moto's server in this process; gives its port and the name of an empty bucket."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer(host, port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    try:
        yield port, new_bucket(port)
    finally:
        server.stop()


def new_bucket(port, name=None):
    name = name or f"bucket-{uuid.uuid4().hex[:12]}"
    ask(port, "PUT", f"/{name}")
    return name


def ask(port, method, path, body=None, headers=SIGNED):
    """Sends one request to the server, past all drivers; returns status, headers and content."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in {"Host": f"127.0.0.1:{port}", **headers}.items():
        connection.putheader(name, value)
    if body is not None and "Content-Length" not in headers:
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), content


@contextlib.contextmanager
def faulty_proxy(port):
    """Runs a proxy of the server at a port; `proxy.fault(method, path)` says what goes wrong.

    `proxy.read` counts the bytes of arrays that were read, by the application that a process named
    (`AWS_SDK_UA_APP_ID`).
    """
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    proxy.daemon_threads, proxy.target = True, port
    proxy.fault = lambda method, path: None
    proxy.read = collections.Counter()
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    """Forwards a request, or does to it what `fault` says:

    busy         answers 503
    cut upload   takes half of the body and cuts the connection
    cut answer   forwards the request, and cuts the connection in the middle of the answer
    a function   is called when the request was forwarded, and the answer is cut
    """

    protocol_version = "HTTP/1.1"

    def handle_one_request(self):
        with contextlib.suppress(ConnectionError):  # a client that was killed
            super().handle_one_request()

    def _handle(self):
        fault = self.server.fault(self.command, self.path)
        length = int(self.headers.get("Content-Length", 0))
        if fault == "cut upload":
            self.rfile.read(length // 2)
            return self._cut()
        body = self.rfile.read(length)
        if fault == "busy":
            return self._answer(503, {}, BUSY)
        status, headers, content = ask(
            self.server.target, self.command, self.path, body, dict(self.headers)
        )
        if callable(fault):
            fault()
        if self.command == "GET" and "/arrays/" in self.path:
            agent = self.headers["User-Agent"]
            self.server.read[agent.rpartition("app/")[2].split(" ")[0]] += len(content)
        return self._answer(status, headers, content, is_cut=fault is not None)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle  # noqa: N815

    def _answer(self, status, headers, content, is_cut=False):
        self.send_response(status)
        kept = {name.lower(): value for name, value in headers.items()}
        if self.command != "HEAD":
            kept["content-length"] = str(len(content))
        for name in kept.keys() - {"connection", "transfer-encoding", "server", "date"}:
            self.send_header(name, kept[name])
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if is_cut else content)
        if is_cut:
            self._cut()

    def _cut(self):
        """Resets the connection."""
        self.close_connection = True
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def log_message(self, *arguments):
        """Stays quiet."""
