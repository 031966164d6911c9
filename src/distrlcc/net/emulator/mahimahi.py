"""The same link by mahimahi's own shells: `mm-delay`, `mm-loss` and `mm-link` in each other."""

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from distrlcc.errors import ConfigError, LinkError, writing
from distrlcc.net.emulator.command import running_outside
from distrlcc.net.emulator.link_config import LinkConfig
from distrlcc.processes import heard


def _words(
    link: LinkConfig, command: Sequence[str], folder: Path, logs: Sequence[Path | None]
) -> list[str]:
    """Write the directions' traces into a folder; return the words that run a command over them."""
    # Refuse what mahimahi does not have.
    ways = list(zip(("uplink", "downlink"), (link.up, link.down), logs, strict=True))
    if any(way.times is None or way.changes or way.phase_ms for _, way, _ in ways):
        raise ConfigError(
            "--emulator mahimahi: mahimahi's links start at their trace's beginning, never change "
            "and limit both directions; leave --scenario out"
        )
    if any(way.queue.mark is not None for _, way, _ in ways):
        raise ConfigError("--emulator mahimahi: its queues mark no packets; leave ecn and mark out")
    if any(way.jitter_ms or way.tick_ms or way.late_share for _, way, _ in ways):
        raise ConfigError(
            "--emulator mahimahi: its packets neither jitter nor bunch nor overtake; leave "
            "--jitter, --reorder or --scenario out"
        )
    delay = link.up.delay_ms
    if delay != round(delay):
        raise ConfigError(f"--delay {delay:g}: mahimahi takes whole milliseconds")
    # A shell in a shell for each, with a trace and options for each direction.
    words = ["mm-delay", str(round(delay))] if delay else []
    traces, options = list[str](), list[str]()
    for name, way, log in ways:
        if way.loss:
            words += ["mm-loss", name, f"{way.loss:g}"]
        path = folder / f"{name}.trace"
        path.write_text("".join(f"{time}\n" for time in way.times or ()))
        traces.append(str(path))
        options.append(f"--{name}-queue={way.queue.kind}")
        if way.queue.kind != "infinite":
            options.append(f"--{name}-queue-args={way.queue.arguments}")
        if log is not None:
            with writing(log):
                log.parent.mkdir(parents=True, exist_ok=True)
            options.append(f"--{name}-log={log}")
    return [*words, "mm-link", *traces, *options, "--", *command]


def run_mahimahi(
    link: LinkConfig,
    command: Sequence[str],
    *,
    logs: Sequence[Path | None],
    outside: Sequence[str] | None,
) -> int:
    """Run a command in mahimahi's shells, with ``logs`` up and down; return its exit code."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="distrlcc-")))
        folder.chmod(0o755)
        words = _words(link, command, folder, logs)
        # Refuse at once what would fail later.
        missing = [w for w in words[: words.index("--")] if w.startswith("mm-")]
        missing = [tool for tool in missing if shutil.which(tool) is None]
        if missing:
            raise LinkError(
                f"{', '.join(missing)} not found; install mahimahi, or leave --emulator out"
            )
        if outside is not None:
            stack.enter_context(running_outside(outside))
        # Run them, and pass signals on.
        process = subprocess.Popen(words)
        for number in heard((signal.SIGTERM, signal.SIGHUP)):
            handler = signal.signal(number, lambda number, _: process.send_signal(number))
            stack.callback(signal.signal, number, handler)
        # COMMAND has the terminal's Ctrl-C too; what it makes of it is the result.
        stack.callback(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.SIG_IGN))
        code = process.wait()
        return code if code >= 0 else 128 - code
