"""One link with a compiled call for each decision is the same as through the batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from distrlcc.board import quick
from distrlcc.board.playground import Question
from distrlcc.evaluation.contender import contender_named
from distrlcc.evaluation.runner import evaluate
from distrlcc.policy.policy_file import shipped_policies

QUESTIONS = (
    Question(seconds=2.005),
    Question(seconds=2, queue=20, beside="cubic", beside_at=0.5),
    Question(seconds=2, loss=2, jitter=3, change_at=1, change_rate=5),
    Question(seconds=2, aqm="codel", trace="cellular:3"),
)


QUICK = {"one", "preference", "cloning", "dagger", "gail"}


@pytest.mark.parametrize("name", sorted(QUICK))
def test_it_is_what_the_batch_does(name: str) -> None:
    contender = contender_named(name)
    for question in QUESTIONS:
        links = [question.scenario(), replace(question, rtt=10.0).scenario()]
        plain, drawn = evaluate(contender, links, series_links=(1,))
        found, lines = evaluate(contender, links, series_links=(1,), run=quick.run)
        for key, value in plain.figures.items():
            np.testing.assert_allclose(found.figures[key], value, rtol=1e-6, atol=1e-9, err_msg=key)
        for field, values in vars(drawn[0]).items():
            if isinstance(values, np.ndarray):
                np.testing.assert_allclose(getattr(lines[0], field), values, rtol=1e-6, atol=1e-9)


def test_most_shipped_policies_are_quick() -> None:
    links = [(0, QUESTIONS[0].scenario())]
    known = {name for name in shipped_policies() if quick._known(contender_named(name), links)}
    assert known == QUICK
