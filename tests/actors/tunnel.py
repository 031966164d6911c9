"""A VPN without its secrecy: carries a TUN device's packets over UDP to one peer.

python tunnel.py DEVICE OWN_ADDRESS PEER_ADDRESS PORT
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import sys
from contextlib import suppress

_TUNSETIFF = 0x400454CA
_IFF_TUN_NO_PI = 0x1001


def main(device: str, own: str, peer: str, port: int) -> None:
    """Carry packets until killed."""
    tun = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TUN_NO_PI))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as carrier:
        carrier.bind((own, port))
        carrier.connect((peer, port))
        sys.stdout.write("open\n")
        sys.stdout.flush()
        while os.getppid() != 1:
            readable, _, _ = select.select([tun, carrier], [], [], 1.0)
            with suppress(ConnectionRefusedError):  # the peer is not there yet
                if tun in readable:
                    carrier.send(os.read(tun, 65536))
                if carrier in readable:
                    os.write(tun, carrier.recv(65536))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
