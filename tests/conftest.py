"""Shared by all tests: one thread per process, and where the recorded traces are."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# A busy machine is no failure, and the same examples are drawn everywhere.
settings.register_profile("distrlcc", deadline=None, derandomize=True)
settings.load_profile("distrlcc")

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the long tests as well")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long"):
        return
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason="long: make test-long runs it"))


def _shared(name: str) -> Path:
    folder = Path(os.environ.get("DISTRLCC_SHARED", Path(__file__).parents[2] / "shared")) / name
    if not folder.is_dir():
        pytest.skip(f"recorded data are missing: no folder {name} beside the project")
    return folder


@pytest.fixture(scope="session")
def thrice() -> Callable[[Callable[[], None]], None]:
    """Return what repeats a measurement in real time that a stall of the machine has spoilt."""

    def measure(once: Callable[[], None]) -> None:
        for _ in range(2):
            try:
                return once()
            except AssertionError:
                continue
        return once()

    return measure


@pytest.fixture(scope="session")
def traces_folder() -> Path:
    """Folder of recorded cellular traces."""
    return _shared("traces")


@pytest.fixture(scope="session")
def mahimahi_logs() -> Path:
    """Folder of logs that a real mahimahi wrote."""
    return _shared("mahimahi-logs")
