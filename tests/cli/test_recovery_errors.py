import json
from pathlib import Path

import pytest

from distrlcc.cli.main import main


@pytest.mark.parametrize(
    ("suite", "said"), [("random", "none of its links changes"), ("cellular", "constant rate")]
)
def test_links_that_have_nothing_to_recover_from_are_refused(
    suite: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["recovery", "--suite", suite, "--links", "2"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_figures_are_written(tmp_path: Path) -> None:
    target = tmp_path / "r.json"
    words = ["--against", "oracle,cubic", "--links", "2", "--json", str(target)]
    assert main(["recovery", *words]) == 0
    found = json.loads(target.read_text())
    assert found["oracle"]["recovered"] == 1.0
    assert found["cubic"]["recovered"] < 0.5
