"""A plugin of pytest: long tests run on demand, and the last lines say what was skipped and why.

A test's reason is ``needs TOOL`` or ``needs TOOL: what for``. The environment variable
DISTRLCC_NEEDS, such as ``clang,root``, makes a failure of each skip whose reason has one of its
words: so a machine that should have a tool shows that it lacks it.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Generator
from typing import TypeVar

import pytest

MOST_FILES = 3
LONG = "long: make test-long runs it"

_Report = TypeVar("_Report", pytest.TestReport, pytest.CollectReport)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the long tests as well")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items if not config.getoption("--long") else ():
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason=LONG))


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return why a test or a file of tests was skipped; nothing if it was not."""
    where = report.longrepr
    if not report.skipped or not isinstance(where, tuple) or hasattr(report, "wasxfail"):
        return ""
    return where[2].removeprefix("Skipped: ")


def _demanded(report: _Report) -> _Report:
    """Make a failure of a skip for lack of what DISTRLCC_NEEDS names."""
    reason = _reason(report)
    for need in filter(None, os.environ.get("DISTRLCC_NEEDS", "").split(",")):
        if reason != LONG and re.search(rf"(?<!\w){re.escape(need)}(?!\w)", reason, re.IGNORECASE):
            report.outcome = "failed"
            report.longrepr = f"DISTRLCC_NEEDS has {need}, but: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _demanded((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _demanded((yield))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    yield
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None or hasattr(session.config, "workerinput"):
        return
    # By what is missing; several processes of xdist may tell of one file.
    lacking = defaultdict[str, set[str]](set)
    for report in terminal.stats.get("skipped", ()):
        reason = _reason(report)
        known = reason.startswith(("needs ", "could not import "))
        lacking[reason.partition(": ")[0] if known else reason].add(report.nodeid)
    left_out = lacking.pop(LONG, ())
    for reason, tests in sorted(lacking.items(), key=lambda item: -len(item[1])):
        files = sorted({test.partition("::")[0] for test in tests})
        more = f" and {len(files) - MOST_FILES} files more" if len(files) > MOST_FILES else ""
        named = ", ".join(files[:MOST_FILES])
        terminal.write_line(f"skipped, {len(tests)}: {reason} ({named}{more})")
    if any(reason.startswith("needs ") for reason in lacking):
        terminal.write_line("sudo scripts/install-test-tools installs Debian's packages for them")
    if left_out:
        terminal.write_line(f"left out, {len(left_out)}: long (make test-long runs them)")
