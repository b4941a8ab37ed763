"""Which rows a checkpoint in the middle of a shuffled stream loses or repeats.

    python benchmarks/shuffle_resume.py [--json] [--quick]

The same JSON Lines files are read by `datasets`, with ``shuffle(buffer_size=1000)``, and by a `StreamingSource` in a
`Loader`. Both are asked for their state in the middle of the first pass; a second object, made anew, loads it and goes
on. Counted are the rows of that pass that never came, and how often rows came more than once. `datasets` does not keep
the rows in its buffer, and says so in its documentation.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import datasets
from measuring import arguments, report

import streamsft as ss

FILES = 4
BUFFER = 1000  # rows that are shuffled together, by both
SEQUENCE_LENGTH = 64
PACKS = 8
SEED = 7


def write_files(folder: Path, rows: int) -> list[str]:
    """Write `rows` rows, whose first token is their number."""
    paths = [folder / f"rows-{number}.jsonl" for number in range(FILES)]
    for number, path in enumerate(paths):
        part = range(rows * number // FILES, rows * (number + 1) // FILES)
        path.write_text("".join(json.dumps({"input_ids": [row, 1], "loss_mask": [0, 1]}) + "\n" for row in part))
    return [str(path) for path in paths]


def theirs(paths: list[str], rows: int) -> Counter[int]:
    """How often `datasets` gave each row, with a checkpoint behind half of them."""

    def stream() -> datasets.IterableDataset:
        made = datasets.load_dataset("json", data_files=paths, split="train", streaming=True)
        return made.shuffle(seed=SEED, buffer_size=BUFFER)

    first = stream()
    seen = Counter(row["input_ids"][0] for row in islice(first, rows // 2))
    second = stream()
    second.load_state_dict(first.state_dict())
    seen.update(row["input_ids"][0] for row in second)
    return seen


def ours(paths: list[str], rows: int) -> Counter[int]:
    """How often this library gave each row in the first pass, with a checkpoint in the middle of it."""

    def make_loader() -> ss.Loader:
        source = ss.StreamingSource(paths, name="rows", shuffle_window=BUFFER)
        mix = ss.Interleave([source], [1.0], seed=SEED)
        return ss.Loader(ss.Packer(mix, SEQUENCE_LENGTH), global_batch_size=PACKS, lanes_per_step=2, lane_groups=2)

    first = make_loader()
    seen = taken(iter(first), rows // 2)
    second = make_loader()
    second.load_state_dict(first.state_dict())
    return seen + taken(iter(second), 2 * rows)  # lanes end a pass at different steps, none of them so late


def taken(batches: Iterator[ss.Batch], rows: int) -> Counter[int]:
    """How often rows of the first pass are among the next `rows` rows, to the end of a batch."""
    seen: Counter[int] = Counter()
    count = 0
    for batch in batches:
        table = batch.documents.table
        numbers = batch.input_ids.numpy()[table.pack, table.slot]
        seen.update(numbers[table.pass_index == 0].tolist())
        count += len(numbers)
        if count >= rows:
            break
    return seen


def main() -> int:
    """Count, and print the figures."""
    options = arguments("Count the rows that a checkpoint loses.").parse_args()
    rows = 6_000 if options.quick else 100_000
    datasets.disable_progress_bars()
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = write_files(Path(folder), rows)
        for name, counts in (("theirs", theirs(paths, rows)), ("ours", ours(paths, rows))):
            figures[f"{name}_lost"] = float(rows - len(counts))
            figures[f"{name}_repeated"] = float(counts.total() - len(counts))
    table = [
        [label, *(f"{figures[f'{name}_{what}']:,.0f}" for what in ("lost", "repeated"))]
        for label, name in ((f"datasets {datasets.__version__}", "theirs"), ("streamsft", "ours"))
    ]
    title = f"A checkpoint among {rows:,} rows"
    report(title, ["stream", "lost", "repeated"], table, figures, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
