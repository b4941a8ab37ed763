"""Turn what is wrong with a config into one message: where, what, and the key that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from streamsft.config_weights import WEIGHT_ELSEWHERE
from streamsft.config_yaml import Document, Issue, KeyPath, dotted
from streamsft.errors import ConfigError

__all__ = ["Sections", "config_error", "describe", "section_of"]

Sections = Mapping[KeyPath, Sequence[str]]
"""The known keys of each section; ``*`` stands for the name of a source or a group."""

# What other tools call our keys.
_ELSEWHERE = {
    "accumulate_grad_batches": "loader.micro_batch_size",
    "batch_size": "loader.global_batch_size",
    "block_size": "sequence_length",
    "cache_dir": "cache.dir",
    "context_length": "sequence_length",
    "cutoff_len": "sequence_length",
    "data_seed": "seed",
    "dataloader_num_workers": "loader.workers",
    "dataset": "mix.sources",
    "dataset_mixer": "mix.sources",
    "datasets": "mix.sources",
    "data": "mix.sources",
    "epochs": "train.steps",
    "eval_batch_size": "eval.batch_size",
    "eval_dataset": "eval.sets",
    "eval_interval": "eval.every",
    "eval_packing": "eval.packed",
    "eval_steps": "eval.every",
    "evaluation": "eval",
    "global_batch": "loader.global_batch_size",
    "gradient_accumulation_steps": "loader.micro_batch_size",
    "gradient_clip_val": "train.grad_clip",
    "learning_rate": "train.lr",
    "log_interval": "metrics.log_every",
    "logging_steps": "metrics.log_every",
    "max_grad_norm": "train.grad_clip",
    "max_len": "sequence_length",
    "max_length": "sequence_length",
    "max_seq_len": "sequence_length",
    "max_seq_length": "sequence_length",
    "max_steps": "train.steps",
    "micro_batch": "loader.micro_batch_size",
    "model_name_or_path": "train.model",
    "num_epochs": "train.steps",
    "num_train_epochs": "train.steps",
    "num_workers": "loader.workers",
    "output_dir": "train.run_dir",
    "per_device_eval_batch_size": "eval.batch_size",
    "per_device_train_batch_size": "loader.micro_batch_size",
    "report_to": "metrics.sinks",
    "sample_packing": "packing",
    "save_interval": "train.save_every",
    "save_steps": "train.save_every",
    "save_total_limit": "train.keep",
    "seq_len": "sequence_length",
    "seq_length": "sequence_length",
    "tokenizer_name": "tokenizer",
    "tokenizer_name_or_path": "tokenizer",
    "train_steps": "train.steps",
    "val_check_interval": "eval.every",
    "val_dataset": "eval.sets",
    "validation": "eval",
    "warmup_steps": "train.warmup",
    "wd": "train.weight_decay",
}
_ELSEWHERE_IN_SOURCE = dict.fromkeys(WEIGHT_ELSEWHERE, "weight") | {
    "buffer_size": "shuffle_window",
    "column_mapping": "columns",
    "data_path": "path",
    "dataset_path": "path",
    "field_mapping": "columns",
    "file": "path",
    "file_name": "path",
    "files": "path",
    "name_or_path": "hub",
    "paths": "path",
    "repo": "hub",
    "shuffle_buffer": "shuffle_window",
    "shuffle_buffer_size": "shuffle_window",
    "stream": "streaming",
    "subset": "config",
    "test_size": "holdout",
    "train_on_input": "train_on",
    "type": "format",
    "val_set_size": "holdout",
    "val_size": "holdout",
    "validation_split": "holdout",
}
_EITHER_IN_LOADER = {
    "batch_size": "'global_batch_size' (packs of a step over all ranks) or 'micro_batch_size' (at a time on a rank)"
}
_NOTES = {
    "train.steps": "training is counted in steps, never in epochs",
    "loader.micro_batch_size": "accumulation follows from it: global_batch_size / ranks / micro_batch_size",
}


def section_of(path: KeyPath) -> KeyPath:
    """`path` without names of sources and list positions: ``("mix", "sources", "*", "columns")``."""
    section: list[str | int] = []
    for part in path:
        if isinstance(part, int):
            continue
        section = ["mix", "sources", "*"] if section[-1:] == ["sources"] else [*section, part]
        if len(section) > 3 and section[3] == "sources":  # a group's sources are again sources
            section = ["mix", "sources"]
        if len(section) > 2 and section[:2] == ["eval", "sets"]:
            section[2] = "*"
    return tuple(section)


def describe(errors: Iterable[Mapping[str, Any]], sections: Sections, data: Mapping[str, Any]) -> list[Issue]:
    """Issues from the error records of a validation; steps of the path in angle brackets are dropped."""
    issues = []
    for error in errors:
        path = tuple(part for part in error["loc"] if not (isinstance(part, str) and part.startswith("<")))
        issues.append(Issue(path, _message(error, path, sections, data)))
    return issues


def _message(error: Mapping[str, Any], path: KeyPath, sections: Sections, data: Mapping[str, Any]) -> str:
    given, context = error.get("input"), error.get("ctx", {})
    misplaced = _misplaced(path, given, sections)
    match error["type"]:
        case "extra_forbidden":
            return "unknown key" + _suggest(path, sections, data)
        case "missing":
            return "missing: this key is needed"
        case "literal_error":
            known = [word.strip("' ") for word in str(context["expected"]).replace(" or ", ", ").split(",")]
            near = difflib.get_close_matches(str(given), known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            return f"{given!r} is not one of {', '.join(known)}{hint}"
        case "int_type" | "int_from_float":
            return f"a whole number is needed, got {_shown(given)}"
        case "float_type":
            return f"a number is needed, got {_shown(given)}"
        case "finite_number":
            return f"a finite number is needed, got {given!r}"
        case "bool_type":
            return f"true or false is needed, got {_shown(given)}"
        case "string_type":
            return f"text is needed, got {_shown(given)}"
        case "too_short" | "string_too_short" if context["min_length"] == 1:
            return "is empty; give one or more" if given == [] else "is empty"
        case "list_type":
            return f"a list is needed, got {_shown(given)}"
        case "model_type" | "dict_type" | "model_attributes_type":
            return misplaced or f"a mapping of keys to values is needed, got {_shown(given)}"
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            return f"{str(error['msg']).removeprefix('Input ')}, got {given!r}"
        case _:
            return str(error["msg"]).removeprefix("Value error, ")


def _shown(given: Any) -> str:
    if given is None:
        return "nothing"
    kind = {str: "text", bool: "true/false", dict: "a mapping", list: "a list"}.get(type(given), "a number")
    return f"{given!r} ({kind})"


def _misplaced(path: KeyPath, given: Any, sections: Sections) -> str | None:
    """A key of a source given where a source is expected: ``mix.sources.weight: 2``."""
    source_keys = sections.get(("mix", "sources", "*"), ())
    if section_of(path) == ("mix", "sources", "*") and path[-1] in source_keys and not isinstance(given, dict):
        inside = dotted((*path[:-1], "<name>", path[-1]))
        return f"{path[-1]!r} is a key of one source, not of all: put it at {inside}"
    return None


def _suggest(path: KeyPath, sections: Sections, data: Mapping[str, Any]) -> str:
    """The key that was probably meant: here under another name, in another section, or spelled alike."""
    key, section = str(path[-1]), section_of(path[:-1])
    here = sections.get(section, ())
    in_source = section in (("mix", "sources", "*"), ("eval", "sets", "*"))
    if in_source and _ELSEWHERE_IN_SOURCE.get(key) in here:
        return f"; here it is called {_ELSEWHERE_IN_SOURCE[key]!r}"
    spelled = key.lower().replace("-", "_")
    if section == ("loader",) and spelled in _EITHER_IN_LOADER:
        return f"; did you mean {_EITHER_IN_LOADER[spelled]}?"
    if (near := difflib.get_close_matches(spelled, here, 1, 0.75)) and near[0] != key:
        return f"; did you mean {near[0]!r}?"
    if spelled in _ELSEWHERE:
        note = _NOTES.get(_ELSEWHERE[spelled])
        return f"; here it is {_ELSEWHERE[spelled]!r}" + (f" ({note})" if note else "")
    places = [home for home, keys in sections.items() if key in keys and home != section]
    homes = [_readable(dotted((*home, key))) if home else "the top level" for home in places]
    if homes:
        return f"; {key!r} belongs to {' or '.join(homes)}"
    below = _mapping_at(data, path[:-1])
    if in_source and "path" not in below and isinstance(below.get(key), dict):
        return "; a group keeps its sources below 'sources'"
    if near := difflib.get_close_matches(spelled, here, 1, 0.5):
        return f"; did you mean {near[0]!r}?"
    every = {k: home for home, keys in sections.items() for k in keys}
    if near := difflib.get_close_matches(spelled, every, 1, 0.75):
        return f"; did you mean {_readable(dotted((*every[near[0]], near[0])))!r}?"
    return f"; known here: {', '.join(here)}" if here else ""


def _readable(path: str) -> str:
    return path.replace("*", "<name>")


def _mapping_at(data: Mapping[str, Any], path: KeyPath) -> Mapping[str, Any]:
    place: Any = data
    for part in path:
        place = place.get(part) if isinstance(place, dict) else None
    return place if isinstance(place, dict) else {}


def config_error(document: Document, issues: Sequence[Issue]) -> ConfigError:
    """One error that lists every issue with its place and its path, in the order of the file, overrides last.

    The place is ``file:line``; of a key that is missing, that of what it is missing in; of an override, its text.

    Of several issues with one path the first is kept: the others follow from it.
    """
    unique: dict[KeyPath, Issue] = {}
    for issue in issues:
        unique.setdefault(issue.path, issue)
    ordered = sorted(
        unique.values(),
        key=lambda issue: (_override(document, issue.path) is not None, _line(document, issue.path) or 0),
    )
    count = f"{len(ordered)} things are wrong" if len(ordered) > 1 else "1 thing is wrong"
    listed = [f"  {_place(document, issue.path)}{issue.message}" for issue in ordered]
    return ConfigError("\n".join([f"{document.source}: {count}", *listed]))


def _place(document: Document, path: KeyPath) -> str:
    line, given = _line(document, path), _override(document, path)
    where = f"override {given}: " if given is not None else f"{document.source}:{line}: " if line else ""
    return f"{where}{dotted(path)}: " if path else where


def _override(document: Document, path: KeyPath) -> str | None:
    """The override that gave the key at `path`, or one below a key that is not in the file."""
    for key, text in document.overridden.items():
        if path[: len(key)] == key or (path and key[: len(path)] == path and path not in document.lines):
            return text
    return None


def _line(document: Document, path: KeyPath) -> int | None:
    while path and path not in document.lines:
        path = path[:-1]
    return document.lines.get(path)
