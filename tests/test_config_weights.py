"""Weights in a config: finite, all or none, above 0 for one at every step, each mistake at its own path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamsft.config import load_config
from streamsft.errors import ConfigError
from tests.test_config import GOOD, mix, refusal, write


def weights(*given: Any) -> dict[str, Any]:
    return mix(
        {
            f"s{i}": {"path": "no/such/file.jsonl"} | ({} if weight == "absent" else {"weight": weight})
            for i, weight in enumerate(given)
        }
    )


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf"), True, "1", [1]])
def test_a_weight_that_is_not_a_finite_number_from_zero_is_refused_at_its_path(weight: Any) -> None:
    with pytest.raises(ConfigError, match=r"mix\.sources\.s1\.weight: a weight is a finite number >= 0"):
        load_config(weights(1, weight))


def test_all_weights_zero_or_some_missing_is_refused_at_every_level() -> None:
    with pytest.raises(ConfigError, match=r"mix\.sources: every weight is 0 \(s0, s1\)"):
        load_config(weights(0, 0.0))
    with pytest.raises(ConfigError, match=r"mix\.sources\.s1\.weight: missing: s0 has one"):
        load_config(weights(0.5, "absent"))
    group = weights(0.5, "absent")["mix"]["sources"]
    with pytest.raises(ConfigError, match=r"mix\.sources\.g\.sources\.s1\.weight: missing"):
        load_config(mix({"g": {"sources": group}}))
    with pytest.raises(ConfigError, match=r"mix\.sources\.s1\.weight: missing: s0 has one"):
        load_config(weights(0.5, None))
    with pytest.raises(ConfigError, match=r"mix\.sources\.s1\.weight: missing: s0 has one"):
        load_config(weights(0.5, 1), ["mix.sources.s1.weight=null"])
    with pytest.raises(ConfigError, match=r"mix\.sources\.g\.sources: at least one source"):
        load_config(mix({"g": {"sources": {}}}))


def test_weights_of_any_scale_zero_among_them_or_none_at_all_are_taken() -> None:
    for scale in ((3, 1), (0, 1), (1e-9, 1e9), ("absent", "absent"), ("absent", None)):
        load_config(weights(*scale))


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("{0: 1, 1x: 2}", "mix.sources.tools.weight.1x: '1x' is not a step"),
        ("{0: 1, -5: 2}", "mix.sources.tools.weight.-5: '-5' is not a step"),
        ("{0: 1, 1.5: 2}", "mix.sources.tools.weight.1.5: '1.5' is not a step"),
        ("{0: 1, 10: -2}", "mix.sources.tools.weight.10: a weight is a finite number >= 0, got -2"),
        ("{0: 1, 10: true}", "mix.sources.tools.weight.10: a weight is a finite number >= 0, got True"),
        ("{0: 1, hold: 3}", "mix.sources.tools.weight.hold: true or false is needed, got 3"),
        ("{hold: true}", "mix.sources.tools.weight: a weight by step without a step"),
        ("{0: 1, 0: 2}", "mix.sources.tools.weight.0: the same key twice"),
    ],
)
def test_a_wrong_weight_by_step_is_told_at_its_step(tmp_path: Path, schedule: str, expected: str) -> None:
    message = refusal(tmp_path, GOOD.replace("toolformer.json, weight: 1}", f"toolformer.json, weight: {schedule}}}"))
    assert expected in message
    assert "1 thing is wrong" in message


def test_a_weight_by_step_is_read_and_survives_an_override(tmp_path: Path) -> None:
    text = GOOD.replace("toolformer.json, weight: 1}", "toolformer.json, weight: {0: 1, 50: 0.5, hold: true}}")
    config = load_config(load_config(write(tmp_path, text)), ["seed=3"])
    assert config.mix.sources["tools"].weights_by_step == {0: 1.0, 50: 0.5, "hold": True}
    assert config.mix.sources["gsm8k"].weights_by_step == 2.0
    assert config.mix.sources["tools"].drawn
    assert not load_config(weights(1, {0: 0, 9: 0})).mix.sources["s1"].drawn


def test_at_no_step_may_every_weight_be_zero() -> None:
    load_config(weights({0: 1, 10: 0}, {5: 0, 10: 1}))
    load_config(weights({0: 1, 10: 0, "hold": True}, {0: 0, 10: 1, "hold": True}))
    with pytest.raises(ConfigError, match=r"mix\.sources: every weight is 0 at step 10 \(s0, s1\)"):
        load_config(weights({0: 1, 10: 0}, {10: 0, 20: 1}))
    with pytest.raises(ConfigError, match=r"mix\.sources: every weight is 0 at step 10"):
        load_config(weights({0: 1, 10: 0, "hold": True}, {10: 0, 20: 1, "hold": True}))


def test_a_streaming_source_needs_a_weight_unless_it_is_alone() -> None:
    streamed = {"path": "x", "streaming": True}
    load_config(mix({"a": streamed}))
    with pytest.raises(ConfigError, match=r"mix\.sources\.a\.weight: missing: how many rows"):
        load_config(mix({"a": streamed, "b": {"path": "y"}}))
    with pytest.raises(ConfigError, match=r"mix\.sources\.g\.weight: missing: how many rows"):
        load_config(mix({"g": {"sources": {"a": streamed}}, "b": {"path": "y"}}))


def test_the_name_of_held_rows_must_be_free() -> None:
    with pytest.raises(ConfigError, match=r"mix\.sources\.a\.holdout: its held rows are called a\.holdout"):
        load_config(mix({"a": {"path": "x", "holdout": 0.1}, "a.holdout": {"path": "y"}}))
