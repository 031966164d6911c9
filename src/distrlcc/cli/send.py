"""Send real packets over UDP under a policy or a scheme, to a 'distrlcc receive'.

distrlcc send HOST runs/demo --seconds 30 --plot flow.png
distrlcc send HOST:4730 cubic --seconds 30 --json -

Flags, in any order:
    receiver HOST[:PORT]  where 'distrlcc receive' is (port 4730)
    sender? SENDER {contender} =one  a policy's file, a run's folder, a shipped policy, a scheme of
        'distrlcc list schemes', or ./file.py:name
    --policy/--scheme {gone}  name it after the receiver, as in 'send HOST cubic'
    --seconds S {0.1..86400} =10.0  how long
    --cwnd N {1.0..1000000}  window of the scheme fixed, packets
    $PREFER
    $ALWAYS
    --datagram BYTES {512..1472} =0  UDP payload of a packet, less for tunnels (default: for packets
        of 1500 bytes)
    --timeout S {0.5..600} =10.0  how long to wait for an answer
    --wait S {0.0..600} =0.0  how long to wait for a receiver that is not there yet (default: 0)
    --hold  print 'ready', then wait for a line of standard input: the start time, s of the
        monotonic clock (an empty line: now); late steps then do not void the flow
    --seed N {0..4611686018427387904} =0  of random draws: of a policy that samples, and of BBR's
        first phase
    --plot FILE {picture}  draw the flow: .png, .svg, or a page, .html
    $JSON
"""

import json
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from distrlcc.cli.output import command_line, emit_text, note
from distrlcc.control.base import Controller
from distrlcc.control.state import INITIAL_CWND
from distrlcc.errors import ConfigError, LinkError
from distrlcc.files import require_output, write_output
from distrlcc.net.emulator.command_group import wait_for_start
from distrlcc.net.flow_record import Sent, Step, StepLog
from distrlcc.net.sending import Request, header_bytes, send
from distrlcc.net.udp_socket import resolve
from distrlcc.processes import run_soon
from distrlcc.runs.stopper import Stopper
from distrlcc.types import Ack

PORT = 4730
_EVERY_SECONDS = 0.5


def contender(text: str) -> str:
    if text.isdecimal():
        raise ConfigError(f"receiver: its port stands behind a colon, as in HOST:{text}")
    return text


def picture(text: str) -> Path:
    from distrlcc.extras import require

    path = Path(text)
    if path.suffix not in (".png", ".svg", ".html"):
        raise ConfigError(f"--plot {path}: expected a name that ends with .png, .svg or .html")
    require("jinja2", "matplotlib")
    require_output(path)
    return path


def run(args: Namespace) -> int:
    """Send; 1 when the receiver vanishes, or the figures do not count."""
    with _step_log(args) as log:
        return _run(args, log)


def _run(args: Namespace, log: StepLog | None) -> int:
    from distrlcc.control.schemes import SchemeController
    from distrlcc.env.controller import PolicyController

    # Refuse what cannot work before anything runs.
    remote = resolve(args.receiver, "receiver", PORT, args.timeout)
    name, controller, step_ns = _controller(args)
    request = Request(args.seconds, args.datagram, timeout_s=args.timeout, wait_s=args.wait)
    run_soon()
    if remote[1] == 0:
        raise ConfigError(f"receiver {args.receiver}: expected a port from 1 to 65535")
    wire_bytes = (args.datagram or 1500 - header_bytes(remote)) + header_bytes(remote) + 4
    line, stopper = _LiveLine(wire_bytes, log), Stopper()
    out = sys.stderr if args.json == "-" else sys.stdout

    def stopping() -> bool:
        return bool(stopper.signal)

    def begin() -> None:
        """Wait for the start time, if one is named, and start a scheme's time."""
        if args.hold:
            wait_for_start(out, stopping=stopping)
        if isinstance(controller, SchemeController):
            controller.begin(now=time.monotonic_ns())

    # Send.
    with stopper:
        try:
            calls: dict[str, Any] = {"on_step": line.show, "stopping": stopping, "on_open": begin}
            sent = send(remote, controller, request, step_ns=step_ns, **calls)
        except LinkError as error:
            if stopper.signal:
                error.exit_code = 128 + stopper.signal
            raise
    # Sum up.
    line.end()
    outside = controller.outside() if isinstance(controller, PolicyController) else {}
    print(_summary(name, sent) + _outside_text(outside), file=out)
    if sent.late:
        note(
            f"distrlcc: {sent.late_share:.1%} of the steps began more than 1 ms late: this machine "
            "was too busy for these figures to count"
        )
    if args.plot is not None and log is not None:
        write_output(args.plot, _drawn(args.plot, log, name, wire_bytes, sent))
    if log is not None:
        figures = json.dumps({"name": name} | _figures(sent) | outside, indent=2)[: -len("\n}")]
        emit_text(args.json, chain([figures, ',\n  "steps_columns": '], log.json(), ["\n}\n"]))
    if sent.failure:
        note(f"distrlcc: error: {sent.failure}")
    failed = sent.failure or (sent.late and not args.hold)
    return 128 + stopper.signal if stopper.signal else int(bool(failed))


def _drawn(path: Path, log: StepLog, name: str, wire_bytes: int, sent: Sent) -> bytes:
    from distrlcc.evaluation.figures import encode
    from distrlcc.evaluation.page import Tile
    from distrlcc.evaluation.plots import drawn, flow_chart
    from distrlcc.evaluation.report import flow_page

    chart = flow_chart(log.whole(), name, wire_bytes)
    if path.suffix != ".html":
        return encode(drawn(chart), path.suffix[1:])
    rtts = {"mean RTT": sent.mean_rtt_ms, "95% of the RTTs are less": sent.p95_rtt_ms}
    tiles = [Tile(f"{sent.mbps:.2f}", "delivered", "Mbit/s", "main")]
    tiles += [Tile(f"{x:.1f}" if x == x else "-", text, "ms") for text, x in rtts.items()]
    tiles.append(Tile(_loss(sent), f"of {sent.packets} packets lost"))
    return flow_page(chart, f"{_summary(name, sent)}.", tiles, command_line()).encode()


def _controller(args: Namespace) -> tuple[str, Controller, Callable[[float], int]]:
    """Return a controller that is ready to act at once, its name and the length of its steps."""
    from distrlcc.control.schemes import SchemeController
    from distrlcc.evaluation.contender import contender_named

    if args.cwnd is not None and args.sender != "fixed":
        raise ConfigError("--cwnd is for the scheme fixed")
    sender = contender_named(args.sender, prefer=args.prefer)
    if args.always and not sender.learned:
        raise ConfigError(f"{sender.name} is a scheme: --always is for a policy")
    if sender.learned:
        policy = replace(sender, always=args.always).controller(args.seed)
        return sender.name, policy, policy.step_ns
    cwnd = INITIAL_CWND if args.cwnd is None else args.cwnd
    scheme = SchemeController(sender.scheme, seed=args.seed, parameter=cwnd)
    # Compile what the first acknowledgements would have to wait for; it begins anew afterwards.
    now = time.monotonic_ns()
    scheme.on_timeout(now=now, sent=10)
    scheme.on_ack(Ack(10_000_000, 0, 10, 0, 9, 1, 0, 100.0, undone=True), now=now + 1)
    return sender.name, scheme, lambda _: 10_000_000


def _step_log(args: Namespace) -> AbstractContextManager[StepLog | None]:
    """Return what keeps the steps where they are asked for, on the disk where they are to go."""
    if args.plot is None and args.json is None:
        return nullcontext()
    target = args.plot if args.json in (None, "-") else Path(args.json)
    places = target.resolve().parents if target else [Path(gettempdir())]
    return StepLog(next(folder for folder in places if folder.is_dir()))


class _LiveLine:
    """A flow's figures, twice a second, on a terminal; logs the steps if they are asked for."""

    def __init__(self, wire_bytes: int, log: StepLog | None) -> None:
        self._log = log
        self._bytes = wire_bytes
        self._since, self._steps = 0.0, list[Step]()

    def show(self, step: Step) -> None:
        if self._log is not None:
            self._log.add(step)
        if not sys.stderr.isatty():
            return
        self._steps.append(step)
        seconds = step.time - self._since
        if seconds < _EVERY_SECONDS:
            return
        acked, lost = (sum(getattr(one, name) for one in self._steps) for name in ("acked", "lost"))
        rtts = sum(one.rtt * one.acked for one in self._steps)
        rtt = f"{1e3 * rtts / acked:7.1f} ms" if acked else "      -   "
        sys.stderr.write(
            f"\r\033[K{step.time:6.1f} s  {acked * self._bytes * 8e-6 / seconds:8.2f} Mbit/s  "
            f"RTT {rtt}  loss {lost / max(lost + acked, 1):6.2%}  cwnd {step.cwnd:7.1f}"
        )
        sys.stderr.flush()
        self._since, self._steps = step.time, []

    def end(self) -> None:
        if sys.stderr.isatty():
            sys.stderr.write("\r\033[K")


def _summary(name: str, sent: Sent) -> str:
    rtts = (
        f"RTT mean {sent.mean_rtt_ms:.1f}, p95 {sent.p95_rtt_ms:.1f}, min {sent.min_rtt_ms:.1f} ms"
    )
    came_late = f", {sent.spurious} more came late" if sent.spurious else ""
    return (
        f"{name}: {sent.seconds:.1f} s, {sent.mbps:.2f} Mbit/s; "
        f"{rtts if sent.acked else 'no RTT was measured'}; loss {_loss(sent)} of {sent.packets} "
        f"packets{came_late}, {sent.timeouts} timeouts; steps late "
        f"{sent.late_share:.2%} (p50 {sent.lateness_p50_ms:.2f}, p99 {sent.lateness_p99_ms:.2f} ms)"
    )


def _outside_text(figures: dict[str, float]) -> str:
    """Say how long, and why, CUBIC's rule sent in a policy's place; empty: it did not."""
    if not figures.get("outside_s"):
        return ""
    causes = {"short_path_entries": "RTT under 2 ms", "noise_entries": "noise in delay"}
    named = ", ".join(f"{text} {figures[key]}x" for key, text in causes.items() if figures[key])
    return (
        f"\nCUBIC's rule sent for {figures['outside_s']:.1f} s, as the path was outside of what "
        f"policies hold ({named}); --always leaves it to the policy"
    )


def _figures(sent: Sent) -> dict[str, Any]:
    values = asdict(sent) | {"mbps": sent.mbps, "loss": sent.loss, "late": sent.late}
    return {k: None if v != v else v for k, v in values.items()}


def _loss(sent: Sent) -> str:
    return "-" if sent.loss != sent.loss else f"{sent.loss:.2%}"
