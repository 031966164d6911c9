"""Which interface reaches a peer: on this machine, and on hosts made of namespaces."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from distrlcc.errors import ConfigError
from distrlcc.parallel.interface import Interface, interface_towards, interfaces, resolve
from tests.support.namespaces import Hosts

SCRIPT = """
import json, sys
from distrlcc.errors import ConfigError
from distrlcc.parallel.interface import interface_towards
answers = []
for words in json.loads(sys.argv[1]):
    try:
        answers.append(str(interface_towards(*words)))
    except ConfigError as error:
        answers.append(f"error: {error}")
print(json.dumps(answers))
"""


def test_loopback_is_reached_over_itself() -> None:
    expected = Interface("lo", "127.0.0.1")
    for words in (("127.0.0.1",), ("localhost",), ("127.0.0.1", "lo")):
        assert interface_towards(*words) == expected
    assert interface_towards("127.8.8.8").name == "lo"
    assert expected in interfaces()
    assert str(expected) == "lo (127.0.0.1)"


def test_an_unknown_interface_is_one_line_that_names_the_others() -> None:
    with pytest.raises(ConfigError) as caught:
        interface_towards("127.0.0.1", "wg7")
    assert str(caught.value).startswith("--interface wg7: expected one that is up")
    assert "lo (127.0.0.1)" in str(caught.value)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "::1", "", "a..b", "x" * 70, "a\0b"])
def test_a_host_without_an_address_is_one_line(host: str) -> None:
    with pytest.raises(ConfigError, match="has no IPv4 address") as caught:
        resolve(host)
    assert "give an address" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "None" not in str(caught.value)


@pytest.mark.net
def test_the_interface_that_routes_is_chosen(make_hosts: Callable[[int], Hosts]) -> None:
    hosts = make_hosts(2)
    for words in (
        ("link", "add", "tun0", "type", "veth", "peer", "name", "tun0-far"),
        ("addr", "add", "10.78.0.1/24", "dev", "tun0"),
        ("link", "set", "tun0", "up"),
        ("link", "set", "tun0-far", "up"),
        ("route", "add", "10.99.0.0/16", "dev", "tun0"),
        ("addr", "add", "10.77.0.200/24", "dev", "eth0"),
        ("addr", "add", "10.80.0.1/24", "dev", "eth0"),
        ("link", "add", "down0", "type", "veth", "peer", "name", "down0-far"),
        ("addr", "add", "10.79.0.1/24", "dev", "down0"),
    ):
        hosts.inside(0, "ip", *words)
    eth0, tun0 = "eth0 (10.77.0.1)", "tun0 (10.78.0.1)"
    no_route = "error: no route to 192.0.2.1 (Network is unreachable); this machine's interfaces: "
    expected = {
        ("10.77.0.2",): eth0,  # the neighbour
        ("10.99.1.1",): tun0,  # behind the tunnel, which is not the first interface
        ("10.78.0.9",): tun0,
        ("10.77.0.1",): eth0,  # itself
        ("10.78.0.1",): tun0,  # itself, by another interface
        ("10.80.0.9",): "eth0 (10.80.0.1)",  # in its second subnet
        ("10.80.0.1",): "eth0 (10.80.0.1)",
        ("127.0.0.1",): "lo (127.0.0.1)",
        ("10.77.0.2", "tun0"): tun0,  # as asked for
        ("192.0.2.1",): no_route,
        ("10.77.0.2", "eth9"): "error: --interface eth9: expected one that is up",
        ("10.79.0.7",): "error: no route to 10.79.0.7",
    }
    command = hosts.command(0, sys.executable, "-c", SCRIPT, json.dumps(list(expected)))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    for answer, start in zip(json.loads(done.stdout), expected.values(), strict=True):
        assert answer.startswith(start)
