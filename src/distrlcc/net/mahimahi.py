"""The same link by mahimahi's own shells: `mm-delay`, `mm-loss` and `mm-link` in each other."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from distrlcc.errors import ConfigError, LinkError
from distrlcc.net.command import running_outside
from distrlcc.net.link_config import DirectionConfig, LinkConfig
from distrlcc.sim.queues import QueueSpec


def mahimahi_command(
    link: LinkConfig,
    command: Sequence[str],
    folder: Path,
    *,
    log_up: Path | None = None,
    log_down: Path | None = None,
) -> list[str]:
    """Write the directions' traces into a folder; return the words that run a command over them.

    Raises:
        ConfigError: mahimahi has no such link.
    """
    _check(link.up, link.down)
    words: list[str] = []
    if link.up.delay_ms:
        words += ["mm-delay", str(round(link.up.delay_ms))]
    for name, way in (("uplink", link.up), ("downlink", link.down)):
        if way.loss:
            words += ["mm-loss", name, f"{way.loss:g}"]
    words.append("mm-link")
    for name, way in (("up", link.up), ("down", link.down)):
        path = folder / f"{name}.trace"
        path.write_text("".join(f"{time}\n" for time in way.times or ()))
        words.append(str(path))
    for name, way, log in (("uplink", link.up, log_up), ("downlink", link.down, log_down)):
        words += _queue_words(name, way.queue)
        if log is not None:
            words.append(f"--{name}-log={log}")
    return [*words, "--", *command]


def _check(*ways: DirectionConfig) -> None:
    if any(way.times is None or way.changes or way.phase_ms for way in ways):
        raise ConfigError(
            "--emulator mahimahi: mahimahi's links start at their trace's beginning, never change "
            "and limit both directions; leave --scenario out"
        )
    delay = ways[0].delay_ms
    if delay != round(delay):
        raise ConfigError(f"--delay {delay:g}: mahimahi takes whole milliseconds")


def _queue_words(name: str, queue: QueueSpec) -> list[str]:
    words = [f"--{name}-queue={queue.kind}"]
    if queue.kind != "infinite":
        words.append(f"--{name}-queue-args={queue.arguments}")
    return words


def run_mahimahi(
    link: LinkConfig,
    command: Sequence[str],
    *,
    log_up: Path | None,
    log_down: Path | None,
    outside: Sequence[str] | None,
) -> int:
    """Run a command in mahimahi's shells; return its exit code.

    Raises:
        ConfigError: mahimahi has no such link.
        LinkError: mahimahi is not installed.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="distrlcc-")))
        folder.chmod(0o755)
        words = mahimahi_command(link, command, folder, log_up=log_up, log_down=log_down)
        missing = [w for w in words[: words.index("--")] if w.startswith("mm-")]
        missing = [tool for tool in missing if shutil.which(tool) is None]
        if missing:
            raise LinkError(
                f"{', '.join(missing)} not found; install mahimahi, or leave --emulator out"
            )
        if outside is not None:
            stack.enter_context(running_outside(outside))
        process = subprocess.Popen(words)
        # COMMAND has the terminal's Ctrl-C too; what it makes of it is the result.
        before = {
            number: signal.signal(number, lambda number, _: process.send_signal(number))
            for number in (signal.SIGTERM, signal.SIGHUP)
        }
        before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            code = process.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return code if code >= 0 else 128 - code
