"""Progress: plain lines at their pace, and the live table of a terminal."""

from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from distrlcc.runs.progress import Progress, _short


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def metrics(steps: int) -> dict[str, float]:
    return {
        "steps": steps,
        "episode_return": 0.7123,
        "utilisation": np.float64(0.9571),
        "queueing_delay": 0.0834,
        "policy_entropy": 1.386,
    }


def test_plain_lines_come_every_ten_seconds_and_at_the_end() -> None:
    out, clock = StringIO(), Clock()
    with Progress(10_000, console=Console(file=out, width=40), clock=clock) as progress:
        for second in range(26):
            clock.now = 100.0 + second
            progress.update(metrics(100 * second))
    lines = out.getvalue().splitlines()
    assert len(lines) == 4  # at 0, 10 and 20 s, and the last state
    assert lines[1] == (
        "steps 1.00k/10.0k  steps/s 100  return 0.712  utilisation 0.957  "
        "queueing delay 0.083 RTT  entropy 1.386  1:30 left"
    )
    assert lines[-1].startswith("steps 2.50k/10.0k")
    assert lines[-1].endswith("1:15 left")
    assert "\x1b" not in out.getvalue()


def test_values_stay_until_newer_ones_come() -> None:
    out, clock = StringIO(), Clock()
    with Progress(1000, console=Console(file=out), clock=clock) as progress:
        progress.update(metrics(10))
        clock.now += 10
        progress.update({"steps": 20})
        clock.now += 10
        progress.update({"utilisation": 0.5})
    lines = out.getvalue().splitlines()
    assert "utilisation 0.957" in lines[1]
    assert "steps 20/1.00k" in lines[2]
    assert "utilisation 0.500" in lines[2]


def test_the_budget_that_ends_first_gives_the_time_left() -> None:
    out, clock = StringIO(), Clock()
    console = Console(file=out)
    with Progress(10_000, max_seconds=60, console=console, clock=clock) as progress:
        progress.update({"steps": 0})
        clock.now += 10
        progress.update({"steps": 1000})  # 90 s by steps, 50 s by time
        clock.now += 10
        progress.update({"steps": 9000, "seconds": 30.0})  # 800 steps/s of late
    lines = out.getvalue().splitlines()
    assert [line.rsplit("  ", 1)[-1] for line in lines] == ["1:00 left", "0:50 left", "0:01 left"]


def test_a_resumed_run_measures_speed_from_where_it_began() -> None:
    out, clock = StringIO(), Clock()
    console = Console(file=out)
    with Progress(2_000_000, max_seconds=0, console=console, clock=clock) as progress:
        progress.update({"steps": 1_000_000})
        clock.now += 10
        progress.update({"steps": 1_001_000})
    assert "steps/s 100 " in out.getvalue().splitlines()[1]


def test_an_alarm_is_written_at_once() -> None:
    out, clock = StringIO(), Clock()
    with Progress(1000, console=Console(file=out), clock=clock) as progress:
        progress.update({"steps": 1})
        clock.now += 1
        progress.update({"steps": 2}, alarm="entropy is gone")
        progress.update({"steps": 3}, alarm="entropy is gone")
        progress.update({"steps": 4}, alarm=None)
    assert out.getvalue().count("alarm: entropy is gone") == 1


def test_a_terminal_gets_a_live_table() -> None:
    out, clock = StringIO(), Clock()
    console = Console(file=out, force_terminal=True, width=80, height=20, color_system=None)
    with Progress(10_000, console=console, clock=clock) as progress:
        progress.update(metrics(1000))
        clock.now += 0.01
        progress.update(metrics(1001))  # too soon to draw
        drawn = out.getvalue()
        assert "1.00k/10.0k" in drawn
        assert "10%" in drawn
        clock.now += 10
        progress.update(metrics(6000), alarm="the window is at its minimum")
    final = out.getvalue()[len(drawn) :]
    assert "6.00k/10.0k" in final
    assert "queueing delay" in final
    assert "0:08 left" in final
    assert "alarm: the window is at its minimum" in final
    assert "\x1b[" in final  # redrawn in place
    assert "\x1b[?25h" in final  # and the cursor is back


def test_a_failure_leaves_the_terminal_in_order() -> None:
    out = StringIO()
    console = Console(file=out, force_terminal=True, width=80)

    def fail() -> None:
        with Progress(10, console=console) as progress:
            progress.update({"steps": 1})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert "\x1b[?25h" in out.getvalue()


def test_nothing_reported_writes_nothing() -> None:
    out = StringIO()
    with Progress(10, console=Console(file=out)):
        pass
    assert out.getvalue() == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (999, "999"), (1000, "1.00k"), (123456, "123k"), (1.5e6, "1.50M"), (2e9, "2.00G")],
)
def test_counts_are_short(value: float, text: str) -> None:
    assert _short(value) == text
