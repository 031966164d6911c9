import random

import pytest

from distrlcc.errors import ConfigError
from distrlcc.sim.queues import PIE, CoDel, DropHead, DropTail, Packet, QueueSpec, parse_queue


def test_specifications_name_queues() -> None:
    assert parse_queue("infinite") == QueueSpec()
    assert parse_queue("droptail:packets=100") == QueueSpec("droptail", 100)
    assert parse_queue("drophead:bytes=60000, packets=7") == QueueSpec("drophead", 7, 60000)
    codel = parse_queue("codel:packets=1000,target=7")
    assert codel.times_ms == (("target", 7), ("interval", 100))
    assert codel.arguments == "packets=1000, target=7, interval=100"
    assert parse_queue("pie:bytes=60000").arguments == "bytes=60000, qdelay_ref=15, max_burst=150"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("infinite", DropTail),
        ("droptail:packets=2", DropTail),
        ("drophead:packets=2", DropHead),
        ("codel:packets=2", CoDel),
        ("pie:packets=2", PIE),
    ],
)
def test_they_are_built(text: str, kind: type) -> None:
    queue = parse_queue(text).build(unit=1, generator=random.Random(0))
    assert type(queue) is kind
    dropped = [len(queue.push(Packet(1504, 0))) for _ in range(3)]
    assert dropped == ([0, 0, 0] if text == "infinite" else [0, 0, 1])


def test_times_are_in_the_links_unit() -> None:
    drops: list[int] = []
    queue = parse_queue("codel:packets=1000").build(
        unit=1000, generator=random.Random(0), on_drop=lambda now, packet: drops.append(now)
    )
    for _ in range(500):
        queue.push(Packet(1504, 0))
    for now in range(10_000, 400_000, 1000):
        queue.pop(now=now)
    assert drops[0] == 110_000


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "unknown queue ''"),
        ("dropptail:packets=1", "did you mean droptail"),
        ("droptail", "has no limit; say droptail:packets=100"),
        ("codel:target=5", "has no limit"),
        ("droptail:packets=0", "packets is '0'; expected a whole number of 1 or more"),
        ("droptail:packets=-3", "packets is '-3'"),
        ("droptail:packets=1.5", "packets is '1.5'"),
        ("droptail:packets", "packets is ''"),
        ("droptail:packets=9" + "9" * 5000, "packets is"),
        ("droptail:packet=1", "no parameter 'packet'; expected packets, bytes"),
        ("droptail:packets=1,target=5", "no parameter 'target'"),
        ("droptail:packets=1,packets=2", "given twice"),
        ("droptail:packets=1,", "no parameter ''"),
        ("droptail:bytes=100", "expected 1504 or more"),
        ("infinite:packets=1", "it takes none"),
        ("pie:packets=1,max_burst=x", "max_burst is 'x'"),
    ],
)
def test_what_does_not_fit_is_one_line(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_queue(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
