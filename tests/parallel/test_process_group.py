"""Groups of real processes over loopback: exchange, death, refusal, and what a user gets wrong."""

from __future__ import annotations

import contextlib
import http.server
import os
import socket
import socketserver
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from distrlcc.errors import ConfigError, GroupError
from distrlcc.parallel.admission import handshake
from distrlcc.parallel.interface import LOOPBACK, Interface, check_private
from distrlcc.parallel.launcher import Launcher
from distrlcc.parallel.membership import Member, _torchft
from distrlcc.parallel.process_group import (
    PeerLostError,
    ProcessGroup,
    RunEndedError,
    checked_device,
)
from distrlcc.parallel.store import Master, connect, raise_to, sockets_to
from distrlcc.runs.identity import identity
from distrlcc.runs.options import RankSpec
from tests.hosts import wait_until
from tests.parallel.group_targets import (
    Job,
    Settings,
    exercise,
    freeze_while_building,
    go_on,
    lose_one,
)

LIMIT = 1.5
LOCAL = RankSpec("127.0.0.1", 0, 0, 1, join_seconds=1.0)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put back what a group sets in this process."""
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "lo")


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def master() -> Iterator[Master]:
    server = Master("127.0.0.1", 0)
    server.begin(0)
    yield server
    server.close()


def _refused(spec: RankSpec, own: Mapping[str, str]) -> str:
    """Return the line with which a process is refused."""
    with pytest.raises(GroupError) as caught, ProcessGroup(spec, own) as group:
        group.agree(0, ready=False)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_a_group_exchanges_misses_loses_refuses_and_admits(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTRLCC_LIMITS", "silence=2.5")
    port, common = _free_port(), identity(Settings(), processes=3)
    specs = [
        RankSpec("127.0.0.1", port, slot, 3, timeout_seconds=LIMIT, join_seconds=60.0)
        for slot in range(3)
    ]
    launcher = Launcher(exercise, Job("", tmp_path), specs)
    outcomes: list[Any] = []
    thread = threading.Thread(target=lambda: outcomes.append(launcher.run()))
    thread.start()
    try:
        both = [tmp_path / f"{slot}.alone" for slot in (0, 1)]
        wait_until(lambda: all(path.exists() for path in both), 60, "two that are left")

        # A second rank 1: refused, and the group stays what it is.
        line = _refused(specs[1], common)
        assert line.startswith("rank 1 (process ")
        assert "on 127.0.0.1) has this place already; give another --node-index" in line

        other = identity(Settings(lr=0.5, hidden=(4,)), processes=3) | {"torch": "1.0"}
        table = _refused(replace(specs[1], slot=3), other).splitlines()
        assert table[1].split() == ["master", "here"]
        rows = {line.split()[0]: line for line in table[2:]}
        assert rows.keys() == {"torch", "lr", "hidden"}
        assert rows["torch"].endswith("1.0")
        assert rows["lr"].split()[1:] == ["0.1", "0.5"]

        with ProcessGroup(replace(specs[0], slot=4), common) as group:
            quorum = group.agree(0, ready=False)
            assert (quorum.joined, quorum.left, group.size, group.rank) == ((), (), 3, 2)
            assert (quorum.behind, quorum.source in (0, 1)) == (True, True)
            (tmp_path / "stop").touch()
            assert go_on(group, tmp_path, group.members[0].step, missed=quorum) == []
    finally:
        (tmp_path / "stop").touch()
        thread.join(60)
    assert not thread.is_alive()
    first, second = outcomes[0].results[0], outcomes[0].results[1]
    assert outcomes[0].code == 0
    assert "was killed by SIGKILL; 2 left on this machine" in capfd.readouterr().err
    _check_exchanges(first, second)
    for found in (first, second):
        (quorum, size), *more = found["later"]
        assert not more, "the refused ones were seen"
        assert ([m.slot for m in quorum.joined], size) == ([4], 3)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def _check_exchanges(first: dict[str, Any], second: dict[str, Any]) -> None:
    for rank, found in enumerate((first, second)):
        quorum, own, size = found["first"]
        assert (own, size, quorum.ready, quorum.behind) == (rank, 3, True, False)
        assert (quorum.left, quorum.joined) == ((), ())
        assert found["sum"] == [3.0, 111.0, 3e300]
        assert found["means"] == [[1.75, 8.0], [3.0, 8.0], [0.0, 0.0]]
        assert found["broadcasts"] == [True] * 3
        assert (found["steps"].source, found["steps"].behind) == (2, True)
        assert 0.5 * LIMIT < found["missed after"] < 30
        assert (found["agreed again"].left, found["sum again"]) == ((), [3.0])
        assert [m.slot for m in found["lost"].left] == [2]
    # Rank 0 is the first to finish; when all have, no rank is ahead; then rank 1 is.
    assert first["counts"] == [0, -2, -1, 0, 1]
    assert second["counts"][:2] == [0, 1]


def test_a_death_is_noticed_by_those_who_wait_for_others() -> None:
    # Among four a sum goes through others: who waits for one of them saw no connection close.
    limit = 30.0
    specs = [RankSpec("127.0.0.1", 0, slot, 4, timeout_seconds=limit) for slot in range(4)]
    outcome = Launcher(lose_one, 3, specs).run()
    assert outcome.results.keys() == {0, 1, 2}
    assert max(outcome.results.values()) < limit / 3


@pytest.mark.parametrize("slot", [0, pytest.param(2, marks=pytest.mark.long)])
def test_who_is_lost_while_a_group_is_built_is_waited_for_once(
    slot: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # gloo gives a member whose address it knows five times as long to connect.
    monkeypatch.setenv("DISTRLCC_LIMITS", "silence=2.5")
    limit = 3.0
    specs = [RankSpec("127.0.0.1", 0, number, 3, timeout_seconds=limit) for number in range(3)]
    found = Launcher(freeze_while_building, slot, specs).run().results
    assert found.keys() == {0, 1, 2} - {slot}
    assert {size for _, size in found.values()} == {2}
    assert max(seconds for seconds, _ in found.values()) < 3 * limit


def test_an_unreachable_master_is_one_line() -> None:
    with socket.socket() as closed:  # bound, so that nobody else takes it, and refuses
        closed.bind(("127.0.0.1", 0))
        port, begin = closed.getsockname()[1], time.monotonic()
        line = _refused(replace(LOCAL, port=port, slot=1, size=2), {})
    assert time.monotonic() - begin >= 1.0
    assert "\n" not in line
    for part in (f"127.0.0.1:{port}", "lo (127.0.0.1)", "for 1 s", "--interface"):
        assert part in line


class Silent(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.settimeout(5.0)
        with contextlib.suppress(OSError):
            while self.request.recv(1024):
                pass


@pytest.mark.parametrize(
    "handler", [http.server.BaseHTTPRequestHandler, Silent, socketserver.BaseRequestHandler]
)
def test_a_server_of_another_kind_is_not_a_master(
    handler: type[socketserver.BaseRequestHandler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTRLCC_LIMITS", "call=1")
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        number = int(server.server_address[1])
        threading.Thread(target=server.serve_forever, daemon=True).start()
        line = _refused(replace(LOCAL, port=number, slot=1, size=2), {})
        server.shutdown()
    assert f"127.0.0.1:{number} is not a distrlcc master" in line
    assert "\n" not in line


def test_looking_for_connections_leaves_no_descriptor() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as line:
            before = len(os.listdir("/dev/fd"))
            assert {frozenset(sockets_to(port)) for _ in range(20)} == {frozenset({line.fileno()})}
            assert len(os.listdir("/dev/fd")) == before


def test_a_master_that_stands_still_is_named_and_nothing_aborts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DISTRLCC_LIMITS", "call=1")
    with socket.create_server(("127.0.0.1", 0)) as frozen:  # its kernel accepts
        port = str(frozen.getsockname()[1])
        words = ["node", "quickstart", "--node-index", "1", "--node-num", "2", "--ip", "127.0.0.1"]
        program = [sys.executable, "-m", "distrlcc", *words, "--port", port]
        ended = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2, ended.stderr
    assert f"127.0.0.1:{port} is not a distrlcc master (or it stands still" in ended.stderr
    assert "terminate" not in ended.stderr


def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        line = rf"^cannot listen on 127.0.0.1:{port}.*--port.*$"
        with pytest.raises(GroupError, match=line) as caught:
            Master("127.0.0.1", port)
    assert caught.value.exit_code == 2
    Master("127.0.0.1", port).close()
    Master("127.0.0.1", port).close()


def test_a_master_listens_on_an_address_of_this_machine_only() -> None:
    with pytest.raises(GroupError, match=r"192\.0\.2\.7.*--ip must be an address") as caught:
        Master("192.0.2.7", 0, token="0123456789abcdef")
    assert caught.value.exit_code == 2
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0"):
        Master("0.0.0.0", 0)


def test_a_missing_member_is_waited_for_then_left_out_or_named(master: Master) -> None:
    common, spec = identity(Settings()), replace(LOCAL, port=master.port, size=3)
    with (
        pytest.raises(GroupError, match="ranks 1, 2 did not come within 1 s") as caught,
        ProcessGroup(replace(spec, elastic=False), common),
    ):
        pass
    assert caught.value.exit_code == 3
    other = Master("127.0.0.1", 0)  # the first still waits for the rank that left a moment ago
    group = ProcessGroup(replace(spec, port=other.port), common)
    with pytest.warns(UserWarning, match="ranks 1, 2 did not come within 1 s; going on"):
        group.__enter__()
    with contextlib.ExitStack() as stack:
        stack.callback(other.close)
        stack.push(group.__exit__)
        assert group.agree(0, ready=False).joined == ()
        assert (group.size, group.rank, group.leads) == (1, 0, True)
        assert group.sum(np.ones(2)).tolist() == [1.0, 1.0]
        assert group.broadcast(b"own", 0) == b"own"
        group.count_finished()
        assert group.others_finished() == 0


def test_a_leader_that_was_replaced_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTRLCC_LIMITS", "silence=0.2,call=1")
    master = Master("127.0.0.1", 0)
    master.begin(0)
    spec = replace(LOCAL, port=master.port)
    with ProcessGroup(spec, identity(Settings())) as group:
        group.agree(0, ready=False)
        time.sleep(0.2)  # it may have been replaced: it asks
        assert group.still_leads()
        raise_to(connect(spec, 1.0), group.epoch + 1)
        assert not group.still_leads()
        group.epoch += 1
        assert group.still_leads()
        master.close()  # who is cut off saves what it has: the folder and the storage have epochs
        assert group.still_leads()
        group.leads = False  # as all have agreed a moment ago
        assert not group.still_leads()


def test_an_epoch_that_another_raised_meanwhile_stays(master: Master) -> None:
    store = connect(replace(LOCAL, port=master.port), 1.0)

    class Frozen:
        """Sees nothing there, and stands still while others go on."""

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def check(self, keys: list[str]) -> bool:
            found = bool(store.check(keys))
            if not found:
                store.set("epoch", "5")
            return found

    assert raise_to(Frozen(), 2) == 5
    for there in ("5", "x", b"\xff", "9" * 5000):  # what no leader wrote is replaced
        store.set("epoch", there)
        assert raise_to(store, 6) == raise_to(store, 4) == 6


def test_a_master_that_says_nothing_is_given_up(master: Master) -> None:
    line = _refused(replace(LOCAL, port=master.port, slot=1, size=2), identity(Settings()))
    assert "did not send '0/identity' within 1 s" in line


def test_what_a_master_says_is_checked(master: Master) -> None:
    spec, common = replace(LOCAL, port=master.port, slot=1, size=2), identity(Settings())
    store = connect(spec, 1.0)
    for attempt, said in enumerate(("[" * 5000, '{"torch": 1e999}', "[]", "\x00")):
        store.set(f"{attempt}/identity", said)
        line = _refused(replace(spec, attempt=attempt), common)
        assert "the master at 127.0.0.1 said something else than expected" in line
        assert len(line) < 400


def _deep(levels: int) -> Any:
    data: Any = 1
    for _ in range(levels):
        data = [data]
    return data


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"slot": 0},
        {"slot": 0, "pid": "x" * 10_000},
        {"slot": -1, "pid": 1},
        {"slot": 0, "pid": 1, "group": _deep(300)},
    ],
    ids=str,
)
def test_what_no_member_would_say_is_left_out(master: Master, said: dict[str, Any]) -> None:
    _agree_beside(master, said, expected="sent an invalid membership record")


def test_no_member_knows_of_a_newer_attempt_than_the_master(master: Master) -> None:
    _agree_beside(master, {"slot": 1, "pid": 1, "attempt": 7}, expected="")


def _agree_beside(master: Master, said: dict[str, Any], expected: str) -> None:
    """Agree alone while one that is no member asks the lighthouse for the same quorums."""
    spec = replace(LOCAL, port=master.port)
    lighthouse = connect(spec, 1.0).get("lighthouse").decode()
    client: Any = _torchft().LighthouseClient(f"http://{lighthouse}", timedelta(seconds=5))
    place = {"address": "here", "store_address": "", "step": 9, "world_size": 1}
    limit, asks = timedelta(seconds=10), {"shrink_only": False, "data": said}
    with warnings.catch_warnings(record=True) as told, ThreadPoolExecutor() as threads:
        warnings.simplefilter("always")
        client.heartbeat("a stranger", timedelta(seconds=5))
        with ProcessGroup(spec, identity(Settings())) as group:
            asked = threads.submit(client.quorum, "a stranger", limit, **place, **asks)
            group.agree(0, ready=False)
            assert len(asked.result().participants) == 2
            assert [member.pid for member in group.members] == [os.getpid()]
    assert [expected in str(one.message) for one in told] == [True] * bool(expected)


def test_slot_0_that_was_started_again_gives_the_same_run(master: Master) -> None:
    spec, common = replace(LOCAL, port=master.port, size=2), identity(Settings())
    store = connect(spec, 1.0)
    assert handshake(store, spec, common, "first") == "first"
    assert handshake(store, spec, common, "second") == "first"
    assert handshake(store, replace(spec, slot=1), common) == "first"


def test_a_gpu_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"--gpu 4096: this machine .*-1 for the CPU"):
        checked_device("cuda:4096")
    assert checked_device("cpu").type == "cpu"


def test_nccl_speaks_where_its_user_trusts_all_who_listen() -> None:
    check_private(Interface("lo", LOOPBACK), named=False)
    check_private(open_to_all := Interface("eth0", "10.0.0.1"), named=True)
    with pytest.raises(ConfigError, match=r"^NCCL would speak over eth0 .*--interface"):
        check_private(open_to_all, named=False)


def test_a_run_that_ends_while_a_group_cannot_be_built_is_not_gone_on_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The quorum stays the same: a member of it was frozen while the others finished.
    members = [Member(slot, f"{slot}-x", "10.0.0.1", 7) for slot in range(2)]
    group, ended, built = object.__new__(ProcessGroup), [False, True], list[int]()
    monkeypatch.setattr(group, "spec", RankSpec("127.0.0.1", 1, 0, 2), raising=False)
    names = {"_broken": False, "_builds": 0, "key": "", "members": [], "_quorum": 0}
    for name, value in names.items():
        monkeypatch.setattr(group, name, value, raising=False)

    def agreed(*_: object, broken: bool, **__: object) -> list[Member]:
        return [replace(member, broken=broken) for member in members]

    membership = SimpleNamespace(agree=agreed, quorum=5, name="0-x")
    monkeypatch.setattr(group, "_membership", membership, raising=False)
    monkeypatch.setattr(group, "_from_store", lambda *_: ended.pop(0))

    def build(_: list[Member]) -> None:
        built.append(1)
        group._broken = True
        raise PeerLostError("timed out")

    monkeypatch.setattr(group, "_build", build)
    with pytest.raises(RunEndedError, match="nothing to join"):
        group.agree(3, ready=True)
    assert len(built) == 1
