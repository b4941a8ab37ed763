"""streamsft: endless, weighted, packed, loss-masked streams for LLM fine-tuning.

The nouns, from the data to the training step:

- `Source`: a named dataset of tokenized rows, such as a `TokenStore` on disk;
- `Interleave`: draws from sources by weight, without end;
- `Packer`: puts the drawn samples into rows of a fixed length (`Pack`);
- `Loader`: one rank's share of the packs of each step, as a `Batch` of tensors.

Which row comes when is a pure function of the seed, the sources and the weights. `Loader.state_dict` says which steps
were consumed; a run goes on from it exactly, with any number of ranks and workers that can share the global batch.

The public names below are imported when they are first used, so that ``import streamsft`` is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamsft.comm import (
        Comm as Comm,
        LocalComm as LocalComm,
        ThreadComm as ThreadComm,
        TorchComm as TorchComm,
    )
    from streamsft.commands.convert import convert as convert
    from streamsft.commands.demo import demo as demo
    from streamsft.commands.explain import explain as explain
    from streamsft.commands.find_row import find_row as find_row
    from streamsft.commands.forecast import forecast as forecast
    from streamsft.commands.holdout import held_out as held_out
    from streamsft.commands.init import init as init
    from streamsft.commands.inspect import StoreReport as StoreReport, inspect as inspect
    from streamsft.commands.preview import preview as preview
    from streamsft.commands.preview_row import preview_row as preview_row
    from streamsft.commands.report import report as report
    from streamsft.commands.tokenize import tokenize as tokenize
    from streamsft.commands.train import train as train
    from streamsft.commands.validate import validate as validate
    from streamsft.config import (
        Config as Config,
        load_config as load_config,
    )
    from streamsft.engine import Engine as Engine
    from streamsft.errors import (
        CommError as CommError,
        ConfigError as ConfigError,
        DataError as DataError,
        EmptySourceError as EmptySourceError,
        MetricError as MetricError,
        RunError as RunError,
        StateError as StateError,
        StoreError as StoreError,
        StreamsftError as StreamsftError,
        TokenizerError as TokenizerError,
    )
    from streamsft.integrations.accelerated import AcceleratedStream as AcceleratedStream
    from streamsft.integrations.inputs import packed_inputs as packed_inputs
    from streamsft.integrations.lightning import StreamDataModule as StreamDataModule
    from streamsft.integrations.trainer import StreamTrainer as StreamTrainer, StreamTrainerMixin as StreamTrainerMixin
    from streamsft.mesh import comm_from_mesh as comm_from_mesh, shard_from_mesh as shard_from_mesh
    from streamsft.metrics.aggregator import Aggregator as Aggregator
    from streamsft.metrics.console import ConsoleSink as ConsoleSink
    from streamsft.metrics.histograms import Buckets as Buckets, Histogram as Histogram
    from streamsft.metrics.metric import Metric as Metric
    from streamsft.metrics.mlflow_sink import MlflowSink as MlflowSink
    from streamsft.metrics.quantiles import Quantiles as Quantiles
    from streamsft.metrics.reducers import (
        Counts as Counts,
        Max as Max,
        Mean as Mean,
        Min as Min,
        Reducer as Reducer,
        Std as Std,
        Sum as Sum,
    )
    from streamsft.metrics.sinks import (
        GuardedSink as GuardedSink,
        HistogramSink as HistogramSink,
        JsonlSink as JsonlSink,
        Sink as Sink,
        TensorBoardSink as TensorBoardSink,
    )
    from streamsft.metrics.stats import (
        SampleColumns as SampleColumns,
        SampleStats as SampleStats,
        SourceInfo as SourceInfo,
    )
    from streamsft.metrics.trackio_sink import TrackioSink as TrackioSink
    from streamsft.metrics.wandb_sink import WandbSink as WandbSink
    from streamsft.order.keys import (
        derive_key as derive_key,
        hash64 as hash64,
        shuffled as shuffled,
    )
    from streamsft.order.permutation import permute as permute
    from streamsft.ray_engine import RayEngine as RayEngine
    from streamsft.sources.base import Source as Source
    from streamsft.sources.concat import ConcatStore as ConcatStore
    from streamsft.sources.grouprows import ReadOptions as ReadOptions
    from streamsft.sources.grouptier import Tier as Tier
    from streamsft.sources.hub import HubDataset as HubDataset
    from streamsft.sources.pairs import SideBySide as SideBySide
    from streamsft.sources.rowgroups import RowGroupStore as RowGroupStore
    from streamsft.sources.store import TokenStore as TokenStore
    from streamsft.sources.streaming import ShardReader as ShardReader, StreamingSource as StreamingSource
    from streamsft.sources.writer import StoreWriter as StoreWriter
    from streamsft.stream.attention import (
        block_causal_mask as block_causal_mask,
        cu_seqlens as cu_seqlens,
        flex_block_mask as flex_block_mask,
        flex_mask_mod as flex_mask_mod,
    )
    from streamsft.stream.collate import Batch as Batch
    from streamsft.stream.evaluation import EvalLoader as EvalLoader
    from streamsft.stream.faces import InfiniteDataset as InfiniteDataset
    from streamsft.stream.interleave import Interleave as Interleave
    from streamsft.stream.loader import Loader as Loader
    from streamsft.stream.packer import Packer as Packer
    from streamsft.stream.packing import pack_lengths as pack_lengths
    from streamsft.stream.portions import Portions as Portions
    from streamsft.stream.weights import WeightSchedule as WeightSchedule
    from streamsft.text.backend import load_tokenizer as load_tokenizer
    from streamsft.text.chat import ChatTokenizer as ChatTokenizer
    from streamsft.text.conversation import (
        Conversation as Conversation,
        RowRejected as RowRejected,
    )
    from streamsft.text.holdout import HoldOut as HoldOut
    from streamsft.text.plain import TextTokenizer as TextTokenizer
    from streamsft.text.workers import LocalEngine as LocalEngine
    from streamsft.training.evaluating import evaluate as evaluate
    from streamsft.training.preference import answer_log_probs as answer_log_probs
    from streamsft.training.settings import TrainResult as TrainResult
    from streamsft.types import (
        Pack as Pack,
        Sample as Sample,
        Shard as Shard,
    )

__version__ = "0.1.0"

_MODULES: dict[str, tuple[str, ...]] = {
    "streamsft.comm": ("Comm", "LocalComm", "ThreadComm", "TorchComm"),
    "streamsft.commands.convert": ("convert",),
    "streamsft.commands.demo": ("demo",),
    "streamsft.commands.explain": ("explain",),
    "streamsft.commands.find_row": ("find_row",),
    "streamsft.commands.forecast": ("forecast",),
    "streamsft.commands.holdout": ("held_out",),
    "streamsft.commands.inspect": ("StoreReport", "inspect"),
    "streamsft.commands.init": ("init",),
    "streamsft.commands.preview": ("preview",),
    "streamsft.commands.preview_row": ("preview_row",),
    "streamsft.commands.report": ("report",),
    "streamsft.commands.tokenize": ("tokenize",),
    "streamsft.commands.train": ("train",),
    "streamsft.commands.validate": ("validate",),
    "streamsft.config": ("Config", "load_config"),
    "streamsft.engine": ("Engine",),
    "streamsft.errors": (
        "CommError",
        "ConfigError",
        "DataError",
        "EmptySourceError",
        "MetricError",
        "RunError",
        "StateError",
        "StoreError",
        "StreamsftError",
        "TokenizerError",
    ),
    "streamsft.integrations.accelerated": ("AcceleratedStream",),
    "streamsft.integrations.inputs": ("packed_inputs",),
    "streamsft.integrations.lightning": ("StreamDataModule",),
    "streamsft.integrations.trainer": ("StreamTrainer", "StreamTrainerMixin"),
    "streamsft.mesh": ("comm_from_mesh", "shard_from_mesh"),
    "streamsft.metrics.aggregator": ("Aggregator",),
    "streamsft.metrics.console": ("ConsoleSink",),
    "streamsft.metrics.histograms": ("Buckets", "Histogram"),
    "streamsft.metrics.metric": ("Metric",),
    "streamsft.metrics.quantiles": ("Quantiles",),
    "streamsft.metrics.reducers": ("Counts", "Max", "Mean", "Min", "Reducer", "Std", "Sum"),
    "streamsft.metrics.mlflow_sink": ("MlflowSink",),
    "streamsft.metrics.sinks": ("GuardedSink", "HistogramSink", "JsonlSink", "Sink", "TensorBoardSink"),
    "streamsft.metrics.stats": ("SampleColumns", "SampleStats", "SourceInfo"),
    "streamsft.metrics.trackio_sink": ("TrackioSink",),
    "streamsft.metrics.wandb_sink": ("WandbSink",),
    "streamsft.order.keys": ("derive_key", "hash64", "shuffled"),
    "streamsft.order.permutation": ("permute",),
    "streamsft.ray_engine": ("RayEngine",),
    "streamsft.sources.base": ("Source",),
    "streamsft.sources.concat": ("ConcatStore",),
    "streamsft.sources.grouprows": ("ReadOptions",),
    "streamsft.sources.grouptier": ("Tier",),
    "streamsft.sources.hub": ("HubDataset",),
    "streamsft.sources.pairs": ("SideBySide",),
    "streamsft.sources.rowgroups": ("RowGroupStore",),
    "streamsft.sources.store": ("TokenStore",),
    "streamsft.sources.streaming": ("ShardReader", "StreamingSource"),
    "streamsft.sources.writer": ("StoreWriter",),
    "streamsft.stream.attention": ("block_causal_mask", "cu_seqlens", "flex_block_mask", "flex_mask_mod"),
    "streamsft.stream.collate": ("Batch",),
    "streamsft.stream.evaluation": ("EvalLoader",),
    "streamsft.stream.faces": ("InfiniteDataset",),
    "streamsft.stream.interleave": ("Interleave",),
    "streamsft.stream.loader": ("Loader",),
    "streamsft.stream.packer": ("Packer",),
    "streamsft.stream.packing": ("pack_lengths",),
    "streamsft.stream.portions": ("Portions",),
    "streamsft.stream.weights": ("WeightSchedule",),
    "streamsft.text.backend": ("load_tokenizer",),
    "streamsft.text.chat": ("ChatTokenizer",),
    "streamsft.text.conversation": ("Conversation", "RowRejected"),
    "streamsft.text.holdout": ("HoldOut",),
    "streamsft.text.plain": ("TextTokenizer",),
    "streamsft.text.workers": ("LocalEngine",),
    "streamsft.training.evaluating": ("evaluate",),
    "streamsft.training.preference": ("answer_log_probs",),
    "streamsft.training.settings": ("TrainResult",),
    "streamsft.types": ("Pack", "Sample", "Shard"),
}
_ORIGINS = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_ORIGINS)


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _ORIGINS:
        raise AttributeError(f"module 'streamsft' has no attribute {name!r}")
    value = getattr(import_module(_ORIGINS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
