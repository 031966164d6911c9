"""What the processes of a launcher have measured."""

import signal
from typing import Any

from distrlcc.errors import GroupError
from distrlcc.parallel.launcher import Launcher


def measured(launcher: Launcher) -> list[Any]:
    """Run it; return the results in order of slots, or raise where a signal cut it short."""
    outcome = launcher.run()
    if outcome.code:
        name = signal.Signals(outcome.code - 128).name
        raise GroupError(f"ended by {name}; nothing was measured", exit_code=outcome.code)
    return [result for _, result in sorted(outcome.results.items())]
