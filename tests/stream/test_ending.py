"""Programs that end in the middle of a loader's batches."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import streamsft as ss

rows = ss.TokenStore.from_rows([{"input_ids": [1] * 20, "loss_mask": [0] + [1] * 19}] * 500, name="rows")
packer = ss.Packer(rows, sequence_length=64)
alive = [iter(ss.Loader(packer, global_batch_size=8, **how)) for how in ({"background": True}, {"workers": 1})]
print([next(batches).step for batches in alive])
"""


def test_a_program_ends_without_a_word_while_threads_and_workers_have_batches_ready() -> None:
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "[1, 1]\n", "")
