"""A real S3 server on loopback, in threads of this process, that can be told to fail; and stores to put there."""

from __future__ import annotations

import os
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

__all__ = ["S3", "Faults", "s3_server", "write_groups"]

_BUCKET = "bucket"


class Faults:
    """What goes wrong with requests for objects: shares of them that fail, and the rest of a body that is missing."""

    def __init__(self, errors: float = 0.0, cut: float = 0.0, slow: float = 0.0, seed: int = 0) -> None:
        self.errors = errors
        self.cut = cut
        self.slow = slow
        self.happened: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def draw(self) -> str:
        """What happens to the next request."""
        with self._lock:
            at = self._random.random()
            what = ""
            for kind, share in (("error", self.errors), ("cut", self.cut), ("slow", self.slow)):
                if 0 <= at < share:
                    what = kind
                at -= share
            self.happened[what] += 1
            return what


class S3:
    """The server.

    Attributes:
        gets: how often each range of each object was read, as (path, range).
        faults: what goes wrong.
    """

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

        self._app = DomainDispatcherApplication(create_backend_app)
        self._server: Any = None
        self.gets: Counter[tuple[str, str]] = Counter()
        self.faults = Faults()
        self._lock = threading.Lock()
        self._ending: threading.Thread | None = None
        self._held = _bound(0)  # or others might be given the port while the server is stopped
        self.port = int(self._held.getsockname()[1])
        self.start()

    def start(self) -> None:
        """Listen, on the same port each time; it dies no more of itself."""
        from werkzeug.serving import WSGIRequestHandler, make_server

        if self._ending is not None:
            self._ending.join()
        self._last, self._ending = -1, None

        class Quiet(WSGIRequestHandler):
            def log_request(self, *args: Any, **kwargs: Any) -> None:
                pass

        with _bound(self.port) as listening:
            listening.listen(128)
            self._server = make_server(
                "127.0.0.1", self.port, self._answer, threaded=True, request_handler=Quiet, fd=listening.fileno()
            )
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def dies_after(self, gets: int) -> None:
        """Stop of itself when ranges were read so many times from now on."""
        with self._lock:
            self._last = sum(self.gets.values()) + gets

    def stop(self) -> None:
        """Refuse connections from now on."""
        self._server.socket.shutdown(socket.SHUT_RDWR)  # forks, which have it open too, would keep it listening
        self._server.shutdown()
        self._server.server_close()

    def close(self) -> None:
        """Stop for good."""
        self.stop()
        self._held.close()

    def address(self, path: str) -> str:
        """The address of a path in the bucket."""
        return f"s3://{_BUCKET}/{path}"

    @property
    def filesystem(self) -> Any:
        """A client."""
        return pafs.S3FileSystem(
            endpoint_override=f"127.0.0.1:{self.port}",
            scheme="http",
            allow_bucket_creation=True,
            background_writes=False,
        )

    def upload(self, folder: Path, path: str) -> str:
        """Copy a folder into the bucket, and return its address."""
        client = self.filesystem
        client.create_dir(_BUCKET)
        for file in sorted(p for p in folder.rglob("*") if p.is_file()):
            place = f"{_BUCKET}/{path}/{file.relative_to(folder)}"
            with client.open_output_stream(place, compression=None) as stream:  # not by the name's ending
                stream.write(file.read_bytes())
        return self.address(path)

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        wanted = environ.get("HTTP_RANGE", "")
        if environ["REQUEST_METHOD"] != "GET" or not wanted:
            return self._app(environ, start)
        what = self.faults.draw()
        if what == "error":
            start("503 Slow Down", [("Content-Length", "0")])
            return [b""]
        with self._lock:
            self.gets[environ["PATH_INFO"], wanted] += 1
            was_last = sum(self.gets.values()) == self._last
        if was_last:
            self._ending = threading.Thread(target=self.stop)  # not from within an answer, which stopping waits for
            self._ending.start()
        if what == "slow":
            threading.Event().wait(0.1)
        body = self._app(environ, start)
        return _cut(body) if what == "cut" else body


def _bound(port: int) -> socket.socket:
    """A socket at a port of loopback that further ones of this kind can be bound to."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind(("127.0.0.1", port))
    return bound


def _cut(body: Iterable[bytes]) -> Iterator[bytes]:
    """Half of a body whose whole length was announced."""
    data = b"".join(body)
    yield data[: len(data) // 2]


@contextmanager
def s3_server() -> Iterator[S3]:
    """A server that clients in this process and its children find by the environment."""
    server = S3()
    settings = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.port}",
        "AWS_ACCESS_KEY_ID": "for-tests",
        "AWS_SECRET_ACCESS_KEY": "secret-for-tests",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield server
    finally:
        server.close()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def write_groups(
    folder: Path, *, files: int = 8, groups: int = 8, rows: int = 20, seed: int = 0, length: int | None = None
) -> Path:
    """Parquet files of tokenized rows of `length` tokens, or of 2 to 60, each beginning with its number."""
    folder.mkdir(parents=True, exist_ok=True)
    random_numbers = np.random.default_rng(seed)
    for file in range(files):
        lengths = random_numbers.integers(2, 60, rows * groups) if length is None else np.full(rows * groups, length)
        ids = [random_numbers.integers(0, 1000, n).tolist() for n in lengths]
        for row, tokens in enumerate(ids):
            tokens[0] = file * rows * groups + row
        table = pa.table(
            {
                "input_ids": pa.array(ids, pa.list_(pa.int32())),
                "loss_mask": pa.array([[0] + [1] * (n - 1) for n in lengths.tolist()], pa.list_(pa.int8())),
                "note": [f"row {row} of file {file}" for row in range(rows * groups)],
            }
        )
        pq.write_table(table, folder / f"part-{file:02}.parquet", row_group_size=rows)
    return folder
