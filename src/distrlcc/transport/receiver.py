"""The receiver of one session: which packets came, and what to acknowledge.

Sans-IO; for each batch of datagrams that was read at once::

    for data in batch:
        new = receiver.on_data(data.number, size, data.lowest, now=now)
        if new: ...                              # a file's bytes go to the stream
    ack = receiver.ack_to_send(now=now)          # one ACK for the batch
    if ack is not None: send(encode_ack(ack, key))

A packet that the owner could not keep must not be passed in: what is acknowledged is not repeated.
"""

from __future__ import annotations

from distrlcc.transport.messages import MAX_RANGES, Acknowledgement
from distrlcc.transport.ranges import Ranges

KEPT_RANGES = 256
"""Ranges that are remembered; of more, the lowest are given up."""


class Receiver:
    """Remembers packet numbers within bounds, and counts."""

    def __init__(self, session: int, *, ack_ranges: int = 32) -> None:
        """Start empty.

        Args:
            session: The session's number, for the ACKs.
            ack_ranges: Ranges in one ACK, at most `MAX_RANGES`.
        """
        self.session = session
        self.packets = 0
        """Packets received, duplicates left out."""
        self.bytes = 0
        """UDP payload bytes of these."""
        self.duplicates = 0
        """Packets received again, or too old to tell."""
        self.reordered = 0
        """Packets that came after one with a higher number."""
        self.largest = -1
        """Highest number received."""
        self._ack_ranges = min(ack_ranges, MAX_RANGES)
        self._ranges = Ranges()
        self._floor = 0  # numbers below are done with
        self._largest_time = 0
        self._ack_due = False

    def on_data(self, number: int, size: int, lowest: int = 0, *, now: int) -> bool:
        """Take a packet; return whether it is new.

        Args:
            number: Its number.
            size: UDP payload bytes.
            lowest: Least number that the sender still waits for.
            now: When it arrived, ns.
        """
        ranges = self._ranges
        self._ack_due = True
        if number < self._floor or ranges.add(number, number + 1) == 0:
            self.duplicates += 1
            return False
        self.packets += 1
        self.bytes += size
        if number > self.largest:
            self.largest, self._largest_time = number, now
        else:
            self.reordered += 1
        if lowest > self._floor:
            self._floor = lowest
            ranges.drop_below(lowest)
        while len(ranges) > KEPT_RANGES:
            self._floor = ranges.drop_lowest()
        return True

    def ack_to_send(self, *, now: int) -> Acknowledgement | None:
        """Return one ACK for all packets since the last, newest ranges first; None without any."""
        if not self._ack_due or not len(self._ranges):
            return None
        self._ack_due = False
        delay = (now - self._largest_time) // 1000
        ranges = self._ranges.newest(self._ack_ranges)
        return Acknowledgement(self.session, ranges, delay, self.bytes)
