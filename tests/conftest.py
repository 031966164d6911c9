"""Shared by all tests: one thread per process, and where the recorded traces are."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from hypothesis import settings

from distrlcc.net.kernel import tcp as kernel_tcp
from distrlcc.net.kernel.trial import Trial
from distrlcc.policy.quantise import follower
from distrlcc.runs.stopper import Stopper
from tests import hosts, warm

pytest_plugins = ("tests.support.skips",)

# A busy machine is no failure, and the same examples are drawn everywhere.
settings.register_profile("distrlcc", deadline=None, derandomize=True)
settings.load_profile("distrlcc")

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")


# As under nohup, children would inherit that these are ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

warm.install()


_DURATIONS = Path(__file__).with_name("durations.txt")
_seconds: Counter[str] = Counter()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--store-durations", action="store_true", help=f"write {_DURATIONS.name}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid.partition("::")[0]] += report.duration  # type: ignore[assignment]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Store the seconds of each file that took some; of xdist's processes only the first writes."""
    if session.config.getoption("--store-durations") and not hasattr(session.config, "workerinput"):
        lines = [f"{seconds:.0f} {name}\n" for name, seconds in _seconds.most_common()]
        _DURATIONS.write_text("".join(line for line in lines if not line.startswith("0 ")))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The longest files begin first, so that no process is left with one of them at the end.
    stored = (line.split() for line in _DURATIONS.read_text().splitlines())
    rank = {name: place for place, (_, name) in enumerate(stored)}
    items.sort(key=lambda item: rank.get(item.nodeid.partition("::")[0], len(rank)))


def _shared(name: str) -> Path:
    folder = Path(os.environ.get("DISTRLCC_SHARED", Path(__file__).parents[2] / "shared")) / name
    if not folder.is_dir():
        pytest.skip(f"recorded data are missing: no folder {name} beside the project")
    return folder


@pytest.fixture(scope="session")
def traces_folder() -> Path:
    """Folder of recorded cellular traces."""
    return _shared("traces")


@pytest.fixture(scope="session")
def mahimahi_logs() -> Path:
    """Folder of logs that a real mahimahi wrote."""
    return _shared("mahimahi-logs")


@pytest.fixture(autouse=True)
def _no_signal_yet() -> None:
    """Forget what an earlier test in this process was asked to stop by."""
    Stopper.newest = 0


@pytest.fixture(autouse=True)
def _fork_server(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let processes that a test starts write where it captures: the fork server keeps its files."""
    captures = "capfd" in request.fixturenames
    if captures:
        request.getfixturevalue("capfd")
        hosts.stop_fork_server()
    yield
    if captures:
        hosts.stop_fork_server()


@pytest.fixture(scope="module")
def trial() -> Iterator[Trial]:
    """The kernel's program, where this machine's kernel takes it."""
    for problem in kernel_tcp.problems():
        pytest.skip(problem)
    with closing(Trial(follower())) as loaded:
        yield loaded


@pytest.fixture
def make_hosts(tmp_path: Path) -> Iterator[Callable[[int], hosts.Hosts]]:
    """Return a function that makes hosts; they are gone after the test."""
    with ExitStack() as stack:

        def make(count: int) -> hosts.Hosts:
            made = hosts.Hosts(count, tmp_path)
            stack.enter_context(made)
            return made

        yield make


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[str]:
    """Start a receiver and return its address; it ends with the test."""
    command = hosts.Command(tmp_path, "receive", "--listen", "127.0.0.1:0")
    yield command.until(r"listening on (\S+)")
    command.process.kill()
    command.process.wait(10.0)
