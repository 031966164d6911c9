"""What the tuner's own process keeps: every report, and the best policy as soon as it is known."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from distrlcc.errors import OutputError
from distrlcc.files import write_together
from distrlcc.tune.report import Report, decode, encode, read_reports
from distrlcc.tune.space import shown
from distrlcc.tune.tune_config import TuneConfig, better

REPORTS, BEST, POLICY = "reports.jsonl", "best.json", "policy.safetensors"
_LINE_SECONDS = 5.0


class Recorder:
    """Writes into the tuner's folder and tells the user."""

    def __init__(
        self, folder: Path, config: TuneConfig, show: Callable[[str], None] | None = None
    ) -> None:
        """Take what earlier attempts have written.

        Args:
            folder: The tuner's.
            config: The tuner's.
            show: Takes a line for the user; None shows nothing.

        Raises:
            OutputError: A file cannot be read.
        """
        self._folder, self._config, self._show = folder, config, show
        earlier = read_reports(folder / REPORTS)
        self._attempt = max((report.attempt + 1 for report in earlier), default=0)
        self.best = read_best(folder)
        self._count = len(earlier)
        self._shown = -_LINE_SECONDS

    def record(self, report: Report) -> None:
        """Append a report.

        Raises:
            OutputError: It cannot be written.
        """
        line = encode(replace(report, attempt=self._attempt)) + b"\n"
        try:
            with (self._folder / REPORTS).open("ab") as file:
                file.write(line)
        except OSError as error:
            raise OutputError(
                f"cannot write {self._folder / REPORTS}: {error.strerror}; members' checkpoints "
                "are kept, so make room and go on with --resume"
            ) from None
        self._count += 1
        now = time.monotonic()
        if self._show is not None and now - self._shown >= _LINE_SECONDS:
            self._shown = now
            self._show(self._line(report))

    def keep(self, report: Report, policy: Callable[[], bytes]) -> None:
        """Keep a policy if no better one was reported.

        Args:
            report: On it.
            policy: Reads the policy file.

        Raises:
            OutputError: It cannot be written.
        """
        if self.best is not None and not better(self._config.mode, report.score, self.best.score):
            return
        write_together(self._folder, {POLICY: policy(), BEST: encode(report)})
        self.best = report

    def _line(self, report: Report) -> str:
        config = self._config
        best = self.best or report
        return (
            f"report {self._count}  member {report.member} update {report.update}/"
            f"{config.updates}: {config.metric} {report.score:.4f}  best {best.score:.4f} (member "
            f"{best.member} update {best.update})  {shown(report.values)}"
        )


def read_best(folder: Path) -> Report | None:
    """Return the report of the kept policy, or None if there is none yet.

    Raises:
        OutputError: It cannot be read.
    """
    path = folder / BEST
    try:
        return decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise OutputError(f"cannot read {path}: {error}; remove it to keep a new best") from None
