"""Coverage-guided fuzzing of `decode`: ``python tests/transport/fuzz_wire.py -max_total_time=60``.

Needs atheris (``pip install atheris``). A datagram that `decode` takes must be encoded to the same
bytes again, but for padding and authenticator; anything raised but `WireError` is a crash.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports():
    from distrlcc.errors import WireError
    from distrlcc.transport import messages, wire
    from distrlcc.transport.keys import TAG_BYTES

KEY = bytes(32)
SIGNED = {
    messages.Retry: wire.encode_retry,
    messages.Welcome: wire.encode_welcome,
    messages.Refuse: wire.encode_refuse,
    messages.Acknowledgement: wire.encode_ack,
    messages.Close: wire.encode_close,
    messages.Closed: wire.encode_closed,
}


def judge(datagram: bytes) -> None:
    """Decode one input, as it is and behind a right start."""
    start = wire.HEADER.pack(wire.MAGIC, wire.VERSION, datagram[0] % 9 if datagram else 0, 0, 1)
    for candidate in (datagram, start + datagram[1:]):
        try:
            message = wire.decode(candidate)
        except WireError:
            continue
        if isinstance(message, messages.Hello):
            again = wire.encode_hello(message)
            assert candidate.startswith(again)
        elif isinstance(message, messages.Data):
            again = wire.encode_data(message)
            assert candidate.startswith(again)
        else:
            again = SIGNED[type(message)](message, KEY)
            assert again[:-TAG_BYTES] == candidate[:-TAG_BYTES]


if __name__ == "__main__":
    atheris.Setup(sys.argv, judge)
    atheris.Fuzz()
