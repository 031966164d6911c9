"""Coverage-guided fuzzing of `decode`: ``python tests/transport/fuzz_wire.py -max_total_time=60``.

Needs atheris (``pip install atheris``). A datagram that `decode` takes must be encoded to the same
bytes again, except padding and authenticator; anything raised except `WireError` is a crash.
"""

import sys

import atheris

with atheris.instrument_imports():
    from distrlcc.errors import WireError
    from distrlcc.transport import wire

KEY = bytes(32)


def judge(datagram: bytes) -> None:
    """Decode one input, as it is and behind a right start."""
    start = wire.HEADER.pack(wire.MAGIC, wire.VERSION, datagram[0] % 9 if datagram else 0, 0, 1)
    for candidate in (datagram, start + datagram[1:]):
        try:
            message = wire.decode(candidate)
        except WireError:
            continue
        if isinstance(message, wire.Hello):
            assert candidate.startswith(wire.encode_hello(message))
        elif isinstance(message, wire.Data):
            session, number, lowest, fin = message
            assert candidate.startswith(wire.data_header(session, number, lowest, fin=fin))
        else:
            answer = isinstance(message, wire.Answer)
            again = wire.encode_answer(message, KEY) if answer else wire.encode_ack(message, KEY)
            assert again[: -wire.TAG_BYTES] == candidate[: -wire.TAG_BYTES]


if __name__ == "__main__":
    atheris.Setup(sys.argv, judge)
    atheris.Fuzz()
