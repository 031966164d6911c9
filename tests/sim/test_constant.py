from fractions import Fraction

import numpy as np
import pytest

from distrlcc.sim.trace import constant_times


def test_a_packet_per_millisecond_is_one_line() -> None:
    assert constant_times(Fraction(1)).tolist() == [1]
    assert constant_times(Fraction(2)).tolist() == [1, 1]
    assert constant_times(Fraction(3, 2)).tolist() == [1, 2, 2]
    assert constant_times(Fraction(1, 10)).tolist() == [10]


@pytest.mark.parametrize(
    "packets_per_ms",
    [Fraction(1, 12_000), Fraction("0.0417"), Fraction("4.99987"), Fraction(200, 12),
     Fraction(8000), Fraction(12_000_000, 12_032_000), Fraction(3.14159)],
)  # fmt: skip
def test_the_rate_is_kept_over_a_period(packets_per_ms: Fraction) -> None:
    times = constant_times(packets_per_ms)
    assert len(times) / times[-1] == pytest.approx(float(packets_per_ms), rel=2e-7)
    assert (np.diff(times) >= 0).all()
    # Evenly: never more than one packet ahead or behind.
    ideal = np.arange(1, len(times) + 1) * (times[-1] / len(times))
    assert np.abs(times - ideal).max() < 1.000001
