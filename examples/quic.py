"""Send real bytes, encrypted, over QUIC on loopback under any of our controllers.

python examples/quic.py                          (the policy `one`)
python examples/quic.py cubic --megabytes 8
python examples/quic.py runs/demo

Needs aioquic. Your own aioquic programs need one import, `distrlcc.quic`, and one setting.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import hashlib
import os
import sys
import time

try:
    from aioquic.asyncio import connect, serve
    from aioquic.quic.configuration import QuicConfiguration
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    from distrlcc.quic import register
except ModuleNotFoundError:
    sys.exit("quic.py needs aioquic: pip install aioquic")

ALPN = "distrlcc-example"


async def transfer(data: bytes) -> tuple[float, str]:
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
        congestion_control_algorithm="distrlcc",
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
    parser.add_argument("sender", nargs="?", default="one", help="a policy or a scheme")
    parser.add_argument("--megabytes", type=float, default=8.0)
    args = parser.parse_args()
    data = os.urandom(round(args.megabytes * 1e6))
    register(args.sender)
    seconds, digest = asyncio.run(transfer(data))
    intact = "intact" if digest == hashlib.sha256(data).hexdigest() else "damaged"
    rate = len(data) * 8e-6 / seconds
    sys.stdout.write(f"{len(data) / 1e6:.1f} MB, {intact}, {seconds:.2f} s, {rate:.1f} Mbit/s\n")


if __name__ == "__main__":
    main()
