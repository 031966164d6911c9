"""Progress: plain lines at their pace, and the live table of a terminal."""

from __future__ import annotations

from io import StringIO
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from distrlcc.runs.progress import Progress, RemoteProgress, show


class Shown:
    """A progress whose clock stands still until it is moved, and what it has written."""

    def __init__(self, total: int, max_seconds: float = 0.0, **console: Any) -> None:
        self.now, self._out = 100.0, StringIO()
        where = Console(file=self._out, **console)
        self.progress = Progress(
            total, max_seconds=max_seconds, console=where, clock=lambda: self.now
        )

    @property
    def text(self) -> str:
        return self._out.getvalue()

    def lines(self, *updates: dict[str, float], every: float = 10.0) -> list[str]:
        """Report some updates, and return the lines that were written in the end."""
        with self.progress:
            for update in updates:
                self.progress.update(update)
                self.now += every
        return self.text.splitlines()


def metrics(steps: int) -> dict[str, Any]:
    return {
        "steps": steps,
        "episode_return": 0.7123,
        "utilisation": np.float64(0.9571),
        "queueing_delay": 0.0834,
        "policy_entropy": 1.386,
    }


def test_plain_lines_come_every_ten_seconds_and_at_the_end() -> None:
    shown = Shown(10_000, width=40)
    lines = shown.lines(*(metrics(100 * second) for second in range(26)), every=1.0)
    assert len(lines) == 4  # at 0, 10 and 20 s, and the last state
    assert lines[1] == (
        "steps 1.00k/10.0k  steps/s 100  return 0.712  utilisation 0.957  "
        "queueing delay 0.083 RTT  entropy 1.386  1:30 left"
    )
    assert lines[-1].startswith("steps 2.50k/10.0k")
    assert lines[-1].endswith("1:15 left")
    assert "\x1b" not in shown.text


def test_values_stay_until_newer_ones_come() -> None:
    lines = Shown(1000).lines(metrics(10), {"steps": 20}, {"utilisation": 0.5})
    for line, part in ((1, "utilisation 0.957"), (2, "steps 20/1.00k"), (2, "utilisation 0.500")):
        assert part in lines[line]


def test_the_budget_that_ends_first_gives_the_time_left() -> None:
    # After 1000 steps 90 s are left by steps and 50 s by time; then 800 steps are done in a second.
    updates = ({"steps": 0.0}, {"steps": 1000.0}, {"steps": 9000.0, "seconds": 30.0})
    lines = Shown(10_000, max_seconds=60).lines(*updates)
    assert [line.rsplit("  ", 1)[-1] for line in lines] == ["1:00 left", "0:50 left", "0:01 left"]


def test_a_resumed_run_measures_speed_from_where_it_began() -> None:
    lines = Shown(2_000_000).lines({"steps": 1_000_000}, {"steps": 1_001_000})
    assert "steps/s 100 " in lines[1]


def test_an_alarm_is_written_at_once() -> None:
    shown = Shown(1000)
    with shown.progress as progress:
        progress.update({"steps": 1})
        for steps, alarm in ((2, "entropy is gone"), (3, "entropy is gone"), (4, None)):
            progress.update({"steps": steps}, alarm=alarm)
    assert shown.text.count("alarm: entropy is gone") == 1


def test_a_terminal_gets_a_live_table() -> None:
    shown = Shown(10_000, force_terminal=True, width=80, height=20, color_system=None)
    with shown.progress as progress:
        progress.update(metrics(1000))
        shown.now += 0.01
        progress.update(metrics(1001))  # too soon to draw
        drawn = shown.text
        assert "1.00k/10.0k" in drawn
        assert "10%" in drawn
        shown.now += 10
        progress.update(metrics(6000), alarm="the window is at its minimum")
    final = shown.text[len(drawn) :]
    for part in ("6.00k/10.0k", "queueing delay", "0:08 left", "the window is at its minimum"):
        assert part in final
    assert "\x1b[" in final  # redrawn in place
    assert "\x1b[?25h" in final  # and the cursor is back


def test_a_failure_leaves_the_terminal_in_order() -> None:
    shown = Shown(10, force_terminal=True, width=80)
    with pytest.raises(ZeroDivisionError), shown.progress as progress:
        progress.update({"steps": 1 / 0})
    assert "\x1b[?25h" in shown.text


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        *((0, "0"), (999, "999"), (1000, "1.00k"), (123456, "123k"), (1.5e6, "1.50M")),
        *(
            (999.5, "1.00k"),
            (999_499, "999k"),
            (999_936, "1.00M"),
            (999.9e6, "1.00G"),
            (2e9, "2.00G"),
        ),
    ],
)
def test_counts_are_short(steps: float, text: str) -> None:
    assert Shown(0).lines({"steps": steps}) == [f"steps {text}"]
    assert Shown(0).lines() == []


def test_what_another_process_keeps_is_shown_once() -> None:
    shown, remote = Shown(1000), RemoteProgress()
    remote.update(metrics(10))
    remote.update({"steps": 20}, alarm="entropy is gone")
    remote.note("worker 3 joined")
    for _ in range(2):
        show(remote.news(), shown.progress)
    assert "worker 3 joined\n" in shown.text
    assert "steps 20/1.00k" in shown.text
    assert shown.text.count("entropy is gone") == shown.text.count("worker 3") == 1
