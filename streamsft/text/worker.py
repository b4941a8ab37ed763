"""The main function of a worker process of `streamsft.text.workers`."""

from __future__ import annotations

import gc
import pickle
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

from streamsft.errors import DataError, StreamsftError

__all__ = ["main"]


def main(descriptor: int) -> None:
    """Receive a job, then items; answer each with (True, result) or (False, exception); end when the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process decides what an interrupt means
    connection = Connection(descriptor)
    try:
        job = pickle.loads(connection.recv_bytes())
        gc.freeze()  # the job stays; looking through its tokenizer again and again costs time
        while True:
            connection.send_bytes(pickle.dumps(_attempt(job, connection.recv_bytes()), protocol=5))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _attempt(job: Any, item: bytes) -> tuple[bool, Any]:
    try:
        return True, job.run(pickle.loads(item))
    except StreamsftError as error:
        return False, error
    except Exception as error:  # sent to the parent process, which raises it
        import traceback

        return False, DataError(
            f"{type(error).__name__} in a worker process: {error}\n{''.join(traceback.format_exception(error))}"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]))
