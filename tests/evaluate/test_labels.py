"""Label placement: labels keep off markers, one another and the edge."""

import itertools
import random

import pytest

from distrlcc.evaluate.labels import Box, place_labels

BOUNDS = Box(0, 0, 400, 300)


def marker(point: tuple[float, float]) -> Box:
    return Box(point[0] - 3, point[1] - 3, point[0] + 3, point[1] + 3)


def test_overlap_by_hand() -> None:
    assert Box(0, 0, 2, 2).overlap(Box(1, 1, 3, 4)) == 1.0
    assert Box(0, 0, 2, 2).overlap(Box(2, 0, 3, 2)) == 0.0
    assert Box(0, 0, 2, 3).area == 6.0
    assert Box(0, 0, 2, 3).grown(1) == Box(-1, -1, 3, 4)


def test_a_lone_label_stands_close_to_the_right() -> None:
    (box,) = place_labels([(100, 100)], [(40, 10)], bounds=BOUNDS, hard=[marker((100, 100))])
    assert box == Box(106, 95, 146, 105)


def test_at_the_right_edge_it_stays_inside() -> None:
    (box,) = place_labels([(395, 100)], [(40, 10)], bounds=BOUNDS)
    assert box.right <= 400


@pytest.mark.parametrize("seed", range(10))
def test_crowded_labels_do_not_overlap(seed: int) -> None:
    draw = random.Random(seed)
    points = [(draw.uniform(170, 230), draw.uniform(120, 180)) for _ in range(9)]
    markers = [marker(p) for p in points]
    boxes = place_labels(points, [(45, 10)] * 9, bounds=BOUNDS, hard=markers)
    assert all(a.overlap(b) == 0 for a, b in itertools.combinations(boxes, 2))
    assert all(b.overlap(m) == 0 for b, m in itertools.product(boxes, markers))
    assert all(b.overlap(BOUNDS) == pytest.approx(b.area) for b in boxes)


def test_lines_are_avoided_where_there_is_room() -> None:
    line = Box(104, 90, 300, 110)
    (box,) = place_labels([(100, 100)], [(40, 10)], bounds=BOUNDS, soft=[line])
    assert box.overlap(line) == 0
