"""Members and the lighthouse alone: who is in a quorum, and that all hear of the same one."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from distrlcc.limits import limits
from distrlcc.parallel.membership import Member, Membership, serve_lighthouse
from distrlcc.runs.options import RankSpec

pytestmark = pytest.mark.net


def _ask(member: Membership) -> list[Member]:
    return member.agree(0, ready=True, broken=False, builds=0, group="")


def _rounds(number: int) -> list[list[list[int]]]:
    """Have the last of three members fall silent as the others ask; say who was told of whom."""
    server = serve_lighthouse("127.0.0.1")
    address, told = server.address().removeprefix("http://"), []
    with ThreadPoolExecutor(3) as threads:
        for _ in range(5):
            spec = RankSpec(slot=0, size=3, address="127.0.0.1", port=1)
            specs = [replace(spec, slot=slot) for slot in range(3)]
            members = [Membership(one, address, "127.0.0.1", lambda: 0) for one in specs]
            assert len({len(found) for found in threads.map(_ask, members)}) == 1
            members[2].stop()
            time.sleep(0.004 * number)
            asked = [threads.submit(_ask, member) for member in members[:2]]
            told.append([[m.slot for m in one.result(4 * limits().silence)] for one in asked])
            for member in members[:2]:
                member.stop()
            time.sleep(1.3 * limits().silence)
    server.shutdown()
    return told


def test_all_hear_of_the_quorum_that_a_silence_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    # As the limits are: a request to another process takes as long as a silence, at most.
    monkeypatch.setenv(
        "DISTRLCC_LIMITS", "silence=0.5,call=0.5,heartbeat=0.02,patience=3,absence=1"
    )
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(_rounds, range(6)))
    assert [told for rounds in found for told in rounds] == [[[0, 1], [0, 1]]] * 30
