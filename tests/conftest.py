"""What all tests share: where the real test data lie, and how Hypothesis runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.forking import without_waiting_for_disks

# Examples are drawn afresh on each run here, and are the same ones on every run in CI. No deadline: the machine
# may be busy with other tests, and a slow example says nothing about a law.
settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("local"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")

without_waiting_for_disks()

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of real test data; a test that needs it is skipped where it is absent, and fails in CI."""
    folder = Path(os.environ.get("STREAMSFT_TEST_DATA") or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        message = f"no test data at {folder}: set STREAMSFT_TEST_DATA to the folder"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return folder
