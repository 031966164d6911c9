"""The master's store: what members write there is believed only where it can be true."""

from __future__ import annotations

from contextlib import closing

from distrlcc.parallel.store import Master, connect, has_ended, note_end, number_in, raise_to
from distrlcc.runs.options import RankSpec


def test_only_who_leads_ends_a_run_and_what_is_no_number_is_not_there() -> None:
    with closing(Master("127.0.0.1", 0, lighthouse=False)) as master:
        master.begin(0)
        spec = RankSpec(address="127.0.0.1", port=master.port, slot=0, size=1, join_seconds=5.0)
        store = connect(spec, spec.join_seconds)
        store.set("0/finished", "0")  # none leads yet
        assert not has_ended(store, 0)
        assert raise_to(store, 3) == 3
        assert not has_ended(store, 0)
        for foreign in ("", "x", "-1", "3.0", "²", "9" * 5000, "2", "4"):
            store.set("0/finished", foreign)
            assert not has_ended(store, 0), foreign
        note_end(store, 0, 2)  # a former leader
        assert not has_ended(store, 0)
        note_end(store, 0, 3)
        assert has_ended(store, 0)
        # Epochs only rise, also from what no leader wrote.
        assert raise_to(store, 2) == 3
        store.set("epoch", "x")
        assert raise_to(store, 4) == 4
        store.set("attempt", "[]")
        assert number_in(store, "attempt") == -1
