"""``python -m streamsft``, the same as ``streamsft``."""

from streamsft.cli import app

app()
