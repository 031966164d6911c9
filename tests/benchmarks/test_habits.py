"""What a policy sees in the kernel beside the simulator: one short link, and the distance."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from distrlcc.cli.main import main
from research.__main__ import COMMANDS
from research.habits import SIMULATED, distances
from tests.net import kernel_commands

record = kernel_commands.record
LINK = """
name = "short"
link = { rate_mbps = 12.032, delay_ms = 5.0, queue_packets = 60 }
"""


def test_the_distance_is_the_greatest_gap_between_two_shares() -> None:
    # Half of 1, 2, 3, 4 and three quarters of 2, 2, 2, 9 are at most 2; others do not differ.
    some, others = np.array([[1.0, 2, 3, 4], [7, 7, 7, 7]]).T, np.array([[2.0, 2, 2, 9], [7] * 4]).T
    assert distances(some, others) == [0.25, 0.0]
    assert distances(some + 1e-5, some) == [0.0, 0.0]  # as whole numbers are in the kernel


@pytest.mark.net
@pytest.mark.usefixtures("record")
def test_the_kernel_and_the_simulators_are_compared(tmp_path: Path) -> None:
    link, plot, figures = (tmp_path / name for name in ("short.toml", "a.svg", "a.json"))
    link.write_text(LINK)
    words = ["habits", "one", "--suite", str(link), "--seconds", "1"]
    words += ["--out", str(plot), "--json", str(figures)]
    assert main(words, "bench", COMMANDS, "research.") == 0
    assert re.search(r"<svg ", plot.read_text())
    told = json.loads(figures.read_text())
    (compared,) = told["distances"].values()
    assert list(compared) == ["kernel's halves", *SIMULATED]
    for found in compared.values():
        assert len(found) == len(told["elements"]) == 33
        assert max(found) <= 1.0
