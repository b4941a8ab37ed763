import math
import signal
from pathlib import Path

import pytest

from streamsft.errors import ConfigError
from streamsft.training.settings import TrainResult, TrainSettings


@pytest.mark.parametrize(
    "wrong", [{"steps": 0}, {"save_every": 0}, {"keep": 0}, {"lr": -1.0}, {"lr": math.nan}, {"micro_batch_size": 0}]
)
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        TrainSettings(**{"steps": 1, "run_dir": Path("x"), **wrong})  # type: ignore[arg-type]


def test_a_stopped_run_is_not_taken_for_a_whole_one() -> None:
    result = TrainResult(steps=5, run_dir=Path("runs/a"), stopped_by="SIGTERM")
    assert result.exit_code == 128 + signal.SIGTERM
    assert result.message == "SIGTERM: saved at step 5 in runs/a; the same command goes on from there"
