"""The keys of a config file, section by section. The models check types and ranges; they build nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, Field, Tag

from streamsft.config_reading import IoConfig, Overflow, Rows, Section, TierConfig
from streamsft.config_values import FolderText, HoldOut, Natural, NonNegative, PathText, Positive, Stretch, Weight
from streamsft.config_yaml import KeyPath

__all__ = [
    "SECTIONS",
    "CacheConfig",
    "Config",
    "EvalConfig",
    "EvalSetConfig",
    "GroupConfig",
    "IoConfig",
    "LoaderConfig",
    "MetricsConfig",
    "MixConfig",
    "PackingConfig",
    "SourceConfig",
    "TextConfig",
    "TierConfig",
    "TrainConfig",
]


class _Node(Section):
    weight: Weight | None = None
    """Relative frequency of draws among its siblings, in what `mix.unit` counts; any scale. 0: never drawn, never
    opened. Without weights rows come equally often. By step: {0: 1.0, 1000: 0.2} goes from one weight to the next
    linearly, with hold: true among them it keeps each until the next."""

    @property
    def weights_by_step(self) -> float | dict[int | str, float | bool] | None:
        """The weight, the steps of a schedule as numbers."""
        if not isinstance(self.weight, dict):
            return self.weight
        return {key if key == "hold" else int(key): value for key, value in self.weight.items()}

    @property
    def drawn(self) -> bool:
        """Whether the weight is above 0 at some step."""
        if not isinstance(self.weight, dict):
            return self.weight != 0
        return any(value for key, value in self.weight.items() if key != "hold")


class SourceConfig(_Node, Rows):
    """A source: where its rows come from, how they become tokens, how often they are drawn."""

    shuffle: Literal["rows", "row_groups", "none"] = "rows"
    """rows: each pass in an order of its own. row_groups: row groups of a store in such an order, then rows within
    shuffle_groups of them, each group read once per pass. none: as in the input, shuffled within a window only."""
    shuffle_groups: Positive | None = None
    """With `shuffle: row_groups`: row groups whose rows are mixed; by default 16."""
    tier: TierConfig | None = None
    """Of a store that is read by row groups: where they are kept on the local disk."""
    io: IoConfig | None = None
    """Of a store that is read by row groups: how much is kept and fetched ahead in memory."""
    streaming: bool = False
    """Read in order and tokenize while training, with a weight, instead of tokenizing all of it first."""
    shuffle_window: Positive | None = None
    """With `streaming`: rows that are shuffled together, after the shards are; by default 1000."""
    extras: list[str] | None = None
    """Of a source of tokens: further columns that travel with the samples untouched."""
    holdout: HoldOut | None = None
    """Rows never trained on: a fraction above 0 and below 1, or a number of rows from 1. Decided by what a row says,
    so copies of a row are on one side. They are a source of their own, <name>.holdout."""

    @property
    def by_groups(self) -> bool:
        """Whether it is a store that is read by row groups: it has an address, or a key that is about those."""
        asked = self.shuffle == "row_groups" or self.tier is not None or self.io is not None
        return self.store is not None and (asked or any("://" in place for place in self.store))


class GroupConfig(_Node):
    """Sources that share one weight; groups nest, and weights multiply."""

    sources: dict[str, Node]
    """The group's sources and groups, by name."""


def _kind(value: object) -> str:
    if isinstance(value, GroupConfig) or (isinstance(value, Mapping) and "sources" in value):
        return "<group>"
    return "<source>"


Node = Annotated[
    Annotated[SourceConfig, Tag("<source>")] | Annotated[GroupConfig, Tag("<group>")], Discriminator(_kind)
]


class MixConfig(Section):
    """What is drawn, and how often."""

    unit: Literal["samples", "tokens"] = "samples"
    """What a weight counts: draws, or their tokens as they are packed."""
    sources: dict[str, Node]
    """Sources and groups, by name; names are unique over the whole mix."""


class TextConfig(Section):
    """How conversations are rendered."""

    chat_template: PathText | None = None
    """A file with a Jinja chat template, in place of the tokenizer's own."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Further variables for the template."""
    date: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")] | None = None
    """The day (YYYY-MM-DD) that templates see which ask for the date."""
    left_out: Literal["reject", "allow"] = "reject"
    """What becomes of a row of which the template leaves out part of a turn that is trained on, such as the reasoning
    of earlier turns."""


class CacheConfig(Section):
    """Where token stores are kept."""

    dir: FolderText | None = None
    """The folder; safe to share between processes and jobs. By default $STREAMSFT_CACHE, or streamsft in the
    user's cache folder."""


Cache = Annotated[
    Annotated[CacheConfig, Tag("<dir>")] | Annotated[Literal[False], Tag("<off>")],
    Discriminator(lambda value: "<off>" if isinstance(value, bool) else "<dir>"),
]


class PackingConfig(Section):
    """How samples share rows of `sequence_length` slots."""

    lookahead: Natural | None = None
    """Draws that are packed together; 0 packs in draw order. By default max(1024, sequence_length // 4)."""
    overflow: Overflow = "truncate"
    """What happens to a sample longer than `sequence_length`."""
    align: Positive = 1
    """Slots that each document takes a multiple of, such as twice the context-parallel size; what is behind its tokens
    has no label. It divides `sequence_length`."""
    pairs: Literal["shared", "side_by_side"] = "shared"
    """Whether the two answers of a preference pair share their prompt, which needs attention with a mask, or are two
    documents of one pack with a prompt each."""


class LoaderConfig(Section):
    """How batches are made. None of it changes which packs a step has, save `global_batch_size` and the lanes."""

    global_batch_size: Positive = 8
    """Packs per optimizer step, over all ranks."""
    micro_batch_size: Positive | None = None
    """Most packs per forward pass on a rank; by default all of its share."""
    workers: Natural = 0
    """Worker processes; 0 makes batches in the training process."""
    start_method: Literal["fork", "spawn", "forkserver"] | None = None
    """How worker processes start; by default the platform's way."""
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = 300.0
    """Seconds without a batch, and without a row read, after which a worker is taken to hang: it is named with what it
    read last and killed, and its batch is made again by new workers. null waits for ever."""
    background: bool = True
    """With 0 workers: keep the next batches ready in a thread."""
    lanes_per_step: Positive | None = None
    """Independent streams that a step draws from. By default 1; with a source that streams or is shuffled by row_groups
    the greatest common divisor of `global_batch_size` and 8, and the number of ranks must divide it."""
    lane_groups: Positive | None = None
    """Groups of so many lanes that take turns; by default 1, with such a source 4, and `workers` must divide it."""
    balance: Literal["none", "tokens", "attention"] = "none"
    """Exchange packs of a step between ranks so that each has about as many tokens, or as much attention to compute:
    the sum of squared document lengths. Where all sources are read by index."""


class MetricsConfig(Section):
    """What is recorded."""

    log_every: Positive = 10
    """Steps between two records."""
    sinks: list[Literal["tensorboard", "wandb", "mlflow", "trackio"]] = Field(default_factory=list)
    """Where records go besides metrics.jsonl and the console. Each needs the extra of its name (tensorboard: train)."""
    project: str | None = None
    """Project in W&B and trackio, experiment in MLflow; by default what their environment variables say, or
    streamsft."""
    builtin: bool = True
    """Record samples, tokens, shares, distributions and packing efficiency per source and group."""
    prefix: str = "data_"
    """What the keys of data metrics begin with."""


class TrainConfig(Section):
    """The training run."""

    steps: Positive | None = None
    """Optimizer steps of the whole run."""
    run_dir: FolderText | None = None
    """Where checkpoints, metrics and the audit are written; resumed from when it has a checkpoint."""
    model: PathText = "tiny"
    """tiny (a small Llama, with the tokenizer's or the stores' ids), none (the data alone), or a model's path."""
    save_every: Positive = 100
    """Steps between two checkpoints."""
    keep: Positive = 3
    """How many checkpoints are kept."""
    loss: Literal["cross_entropy", "dpo"] = "cross_entropy"
    """cross_entropy: of the supervised tokens. dpo: of preference pairs, against the model as it was at the start."""
    beta: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    """With `loss: dpo`: how much a difference in log-probability counts."""
    lr: NonNegative = 3e-4
    """Peak learning rate."""
    warmup: Natural = 10
    """Steps of linear warm-up; a cosine follows."""
    weight_decay: NonNegative = 0.01
    """Decoupled weight decay, on matrices."""
    grad_clip: NonNegative | None = 1.0
    """Largest norm of the gradient; null: unbounded."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """ddp: every rank has the whole weights and optimizer. fsdp: they are divided over the ranks, and checkpoints hold
    each rank's part."""
    async_save: bool = False
    """With `parallel: fsdp`: write weights and optimizer of a checkpoint while training goes on."""
    audit: bool = False
    """Write what each step consumed to audit/rank-<r>.jsonl."""
    skip_steps: list[Stretch] = Field(default_factory=list)
    """Stretches of steps, first and last each, whose data are left out, as in [[120, 140]]; those behind follow."""


class EvalSetConfig(Rows):
    """Samples that the loss is found on: where their rows come from, and how they become tokens."""


EvalSet = Annotated[
    Annotated[EvalSetConfig, Tag("<set>")] | Annotated[str, Tag("<held>")],
    Discriminator(lambda value: "<held>" if isinstance(value, str) else "<set>"),
]


class EvalConfig(Section):
    """What the model's loss is found on while it trains; none of it changes what is trained on."""

    every: Positive | None = None
    """Optimizer steps from one evaluation to the next; there is one behind the last step in any case."""
    sets: dict[str, EvalSet]
    """Name → the rows that a source of the mix holds out, as <source>.holdout, or a source of its own. Each row is
    evaluated once."""
    packed: bool = True
    """Fill rows of sequence_length with several samples; otherwise each has a row of its own."""
    batch_size: Positive | None = None
    """Packs, or rows, per forward pass on a rank; by default `loader.micro_batch_size`, or 8."""


class Config(Section):
    """A whole config file."""

    seed: Natural = 0
    """Every random choice follows from it."""
    sequence_length: Annotated[int, Field(ge=2)]
    """Slots per pack, in tokens."""
    tokenizer: PathText | None = None
    """A tokenizer's folder, its hub id, or package:NAME for one inside an installed Python package.
    Not needed when all sources are stores."""
    mix: MixConfig
    text: TextConfig = Field(default_factory=TextConfig)
    cache: Cache = Field(default_factory=CacheConfig)
    packing: PackingConfig = Field(default_factory=PackingConfig)
    loader: LoaderConfig = Field(default_factory=LoaderConfig)
    metrics: MetricsConfig = Field(default_factory=MetricsConfig)
    eval: EvalConfig | None = None
    """What the model's loss is found on while it trains."""
    train: TrainConfig = Field(default_factory=TrainConfig)


SECTIONS: Mapping[KeyPath, type[BaseModel]] = {
    (): Config,
    ("mix",): MixConfig,
    ("mix", "sources", "*"): SourceConfig,
    ("mix", "sources", "*", "tier"): TierConfig,
    ("mix", "sources", "*", "io"): IoConfig,
    ("text",): TextConfig,
    ("cache",): CacheConfig,
    ("packing",): PackingConfig,
    ("loader",): LoaderConfig,
    ("metrics",): MetricsConfig,
    ("eval",): EvalConfig,
    ("eval", "sets", "*"): EvalSetConfig,
    ("train",): TrainConfig,
}
"""The model of each section; ``*`` stands for the name of a source."""
