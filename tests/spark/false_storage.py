"""Storage nodes that fail their readers: the pages of a true one, spoiled by a test."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from support.waiting import limit

Answer = tuple[int, bytes, int]  # status, body, and how many bytes of it are sent
Spoil = Callable[[str, Callable[[str], Answer]], Answer]


@contextmanager
def false_storage(url: str, spoil: Spoil) -> Iterator[str]:
    """Serve the pages of a storage node; `spoil` gets each path, and how to ask the true node."""
    where = urlsplit(url)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body, sent = spoil(self.path, self._ask)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[:sent])
            self.close_connection = True

        def _ask(self, path: str) -> Answer:
            connection = HTTPConnection(where.netloc, timeout=limit(10))
            shown = self.headers.get("Authorization")
            connection.request("GET", path, headers={"Authorization": shown} if shown else {})
            response = connection.getresponse()
            body = response.read()
            connection.close()
            return response.status, body, len(body)

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
