"""The main function of a worker process of `streamsft.text.workers`."""

from __future__ import annotations

import gc
import pickle
import signal
import sys
from multiprocessing.connection import Connection

from streamsft.engine import attempted

__all__ = ["main"]


def main(descriptor: int) -> None:
    """Receive a job, then items; answer each with (True, result) or (False, exception); end when the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process decides what an interrupt means
    connection = Connection(descriptor)
    try:
        job = pickle.loads(connection.recv_bytes())
        gc.freeze()  # the job stays; looking through its tokenizer again and again costs time
        while True:
            connection.send_bytes(pickle.dumps(attempted(job, pickle.loads(connection.recv_bytes())), protocol=5))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


if __name__ == "__main__":
    main(int(sys.argv[1]))
