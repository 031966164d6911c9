"""Send real bytes, encrypted, over QUIC on loopback under any of our controllers.

python examples/quic.py --scheme cubic --megabytes 8
python examples/quic.py --policy runs/demo

Needs aioquic (``pip install aioquic``). aioquic finds losses and encrypts (TLS 1.3); our controller
sets the window, of which aioquic's own pacer spreads one over each RTT. A policy acts with the
first acknowledgement after each of its steps. Use `register` in your own aioquic programs.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterable

from aioquic.asyncio import connect, serve
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.congestion.base import QuicCongestionControl, register_congestion_control
from aioquic.quic.packet_builder import QuicSentPacket
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from distrlcc.control.base import Controller
from distrlcc.control.schemes import SchemeController
from distrlcc.evaluation.contender import PolicyController, contender_from_file
from distrlcc.transport.recovery import DeliveryRate, Interval, RttEstimator, Stamp
from distrlcc.types import Ack

ALPN = "distrlcc-example"
STEP_NS = 10_000_000
StepLength = Callable[[float], int]


class Adapter(QuicCongestionControl):
    """One of our controllers as aioquic's congestion control; counts are packets, times ns."""

    def __init__(
        self, controller: Controller, step_ns: StepLength, *, max_datagram_size: int
    ) -> None:
        """Begin; ``step_ns`` gives a step's length, ns, for the minimum RTT, s."""
        super().__init__(max_datagram_size=max_datagram_size)
        now = self._due = time.monotonic_ns()
        self._controller, self._step_ns, self._size = controller, step_ns, max_datagram_size
        self._rtt, self._rate = RttEstimator(), DeliveryRate(True, now=now)
        self._interval = Interval(max_datagram_size, now=now)
        self._flying: dict[int, tuple[int, Stamp]] = {}  # by the packet's id
        self._sent = self._lost = self._largest_lost = 0
        self._set_window()

    def on_packet_sent(self, *, packet: QuicSentPacket) -> None:
        """Remember when it was sent."""
        stamp = self._rate.stamp(len(self._flying), now=int(packet.sent_time * 1e9))
        self._flying[id(packet)] = self._sent, stamp
        self._sent += 1
        self._interval.sent += 1
        self.bytes_in_flight += packet.sent_bytes

    def on_packet_acked(self, *, now: float, packet: QuicSentPacket) -> None:
        """Tell the controller."""
        number, stamp = self._take(packet)
        time_ns, rate, rtt = int(now * 1e9), self._rate, self._rtt
        # Tell the controller what this packet showed, and of losses before it.
        elapsed = rate.deliver(stamp, now=time_ns) or 1
        sample = rtt.sample(time_ns - stamp[0])
        rtt.smooth(sample)
        delivered = rate.delivered - stamp[1]
        self._interval.on_ack(sample, rtt.minimum, delivered, elapsed, self._sent - number)
        lost, self._lost = self._lost, 0
        number = self._largest_lost + 1 if lost else number
        inflight, speed = len(self._flying), delivered * 1e9 / elapsed
        ack = Ack(sample, number, self._sent, lost, inflight, rate.delivered, stamp[1], speed)
        self._controller.on_ack(ack, now=time_ns)
        # End the step when it is over.
        if time_ns >= self._due:
            stats = self._interval.take(rtt, self._controller, inflight, now=time_ns)
            self._controller.on_interval(stats, now=time_ns)
            self._due = time_ns + self._step_ns(rtt.minimum * 1e-9)
        self._set_window()

    def on_packets_lost(self, *, now: float, packets: Iterable[QuicSentPacket]) -> None:
        """Count them; the controller learns of them with the next acknowledgement."""
        for packet in packets:
            number, _ = self._take(packet)
            self._lost += 1
            self._interval.lost += 1
            self._largest_lost = max(self._largest_lost, number)

    def on_packets_expired(self, *, packets: Iterable[QuicSentPacket]) -> None:
        """Forget them."""
        for packet in packets:
            self._take(packet)

    def on_persistent_congestion(self) -> None:
        """Tell the controller of a timeout."""
        self._interval.timeouts += 1
        self._controller.on_timeout(now=time.monotonic_ns(), sent=self._sent)
        self._set_window()

    def on_rtt_measurement(self, *, now: float, rtt: float) -> None:
        """Do nothing: each packet's own RTT is taken."""

    def _take(self, packet: QuicSentPacket) -> tuple[int, Stamp]:
        self.bytes_in_flight -= packet.sent_bytes
        return self._flying.pop(id(packet))

    def _set_window(self) -> None:
        window, pacing = self._controller.cwnd, self._controller.pacing_rate
        if pacing and self._rtt.smoothed:
            window = min(window, pacing * self._rtt.smoothed * 1e-9)
        self.congestion_window = max(int(window), 2) * self._size


def register(controller: Controller, step_ns: StepLength = lambda _: STEP_NS) -> str:
    """Return the name under which aioquic now knows a controller, for one connection."""
    name = f"distrlcc-{id(controller):x}"
    register_congestion_control(
        name,
        lambda *, max_datagram_size: Adapter(
            controller, step_ns, max_datagram_size=max_datagram_size
        ),
    )
    return name


async def transfer(data: bytes, algorithm: str) -> tuple[float, str]:
    """Send bytes to a server in this process; return the seconds and the server's SHA-256."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        digest = hashlib.sha256()
        while chunk := await reader.read(1 << 16):
            digest.update(chunk)
        writer.write(digest.hexdigest().encode())
        writer.write_eof()

    def on_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.ensure_future(answer(reader, writer)))

    tasks: list[asyncio.Future[None]] = []
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _certificate(key)
    listening = QuicConfiguration(
        is_client=False, alpn_protocols=[ALPN], certificate=certificate, private_key=key
    )
    sending = QuicConfiguration(
        alpn_protocols=[ALPN],
        congestion_control_algorithm=algorithm,
        server_name="localhost",
        cadata=certificate.public_bytes(serialization.Encoding.PEM),
    )
    server = await serve("127.0.0.1", 0, configuration=listening, stream_handler=on_stream)
    # aioquic has no public way to the port that it was given.
    port = server._transport.get_extra_info("sockname")[1]
    try:
        async with connect("127.0.0.1", port, configuration=sending) as client:
            begin = time.monotonic()
            reader, writer = await client.create_stream()
            writer.write(data)
            writer.write_eof()
            digest = (await reader.read()).decode()
            return time.monotonic() - begin, digest
    finally:
        server.close()


def _certificate(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    """Return a certificate for ``localhost`` that lasts an hour."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now, hour = datetime.datetime.now(datetime.UTC), datetime.timedelta(hours=1)
    number, names = (
        x509.random_serial_number(),
        x509.SubjectAlternativeName([x509.DNSName("localhost")]),
    )
    return (
        x509.CertificateBuilder(name, name, key.public_key(), number, now - hour, now + hour)
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )


def main() -> None:
    """Send random bytes and say how fast they arrived."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    controllers = parser.add_mutually_exclusive_group()
    controllers.add_argument("--scheme", default="cubic", help="see 'distrlcc list schemes'")
    controllers.add_argument("--policy", help="a policy file, or a run's folder")
    parser.add_argument("--megabytes", type=float, default=8.0)
    args = parser.parse_args()
    data = os.urandom(round(args.megabytes * 1e6))
    if args.policy:
        policy = PolicyController(contender_from_file(args.policy, set(), None))
        algorithm = register(policy, policy.step_ns)
    else:
        algorithm = register(SchemeController(args.scheme, now=time.monotonic_ns()))
    seconds, digest = asyncio.run(transfer(data, algorithm))
    intact = "intact" if digest == hashlib.sha256(data).hexdigest() else "damaged"
    rate = len(data) * 8e-6 / seconds
    sys.stdout.write(f"{len(data) / 1e6:.1f} MB, {intact}, {seconds:.2f} s, {rate:.1f} Mbit/s\n")


if __name__ == "__main__":
    main()
