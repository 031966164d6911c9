"""Running moments agree with the plain ones, in any order and after any merge."""

import numpy as np

from distrlcc.policy.normalizer import Normalizer, normalize


def _rows() -> np.ndarray:
    return np.random.default_rng(0).normal([5.0, -1e4, 0.0], [2.0, 0.1, 30.0], (1000, 3))


def test_updates_equal_the_plain_moments() -> None:
    rows, normalizer = _rows(), Normalizer(3)
    for part in np.split(rows, [1, 10, 400]):
        normalizer.update(part)
    normalizer.update(np.zeros((0, 3)))
    np.testing.assert_allclose(normalizer.mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(normalizer.std, rows.std(0), rtol=1e-9)
    assert normalizer.count == 1000


def test_merge_equals_one_that_saw_all() -> None:
    rows = _rows()
    parts = [Normalizer(3) for _ in range(3)]
    for part, chunk in zip(parts, np.split(rows, [100, 700]), strict=True):
        part.update(chunk.reshape(-1, 2, 3) if len(chunk) % 2 == 0 else chunk)
    for other in (parts[0], parts[1], Normalizer(3)):
        parts[2].merge(other.count, other.mean, other.m2)
    np.testing.assert_allclose(parts[2].mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(parts[2].std, rows.std(0), rtol=1e-9)


def test_normalize_by_hand_and_clip() -> None:
    obs = np.array([[3.0, 1e6, -1e6]], np.float32)
    mean, std = np.array([1, 0, 0], np.float32), np.array([4, 1, 1], np.float32)
    assert normalize(obs, mean, std).tolist() == [[0.5, 10.0, -10.0]]
    assert obs[0, 1] == 1e6


def test_without_data_or_variance_std_is_one() -> None:
    normalizer = Normalizer(2)
    assert normalizer.std.tolist() == [1.0, 1.0]
    normalizer.update(np.full((7, 2), 3.0))
    assert normalizer.std.tolist() == [1.0, 1.0]


def test_state_round_trip() -> None:
    normalizer, again = Normalizer(3), Normalizer(3)
    normalizer.update(_rows())
    again.load_state_dict(normalizer.state_dict())
    assert again.count == normalizer.count
    np.testing.assert_array_equal(again.mean, normalizer.mean)
    np.testing.assert_array_equal(again.std, normalizer.std)
