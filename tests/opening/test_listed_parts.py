"""Lists of parts of videos and recordings: their labels."""

from __future__ import annotations

from pathlib import Path

import pytest

from datapipe.errors import OptionError
from datapipe.sources.lists.parts import read_parts


def labels_of(path: Path, *labels: str) -> tuple[list[int], tuple[str, ...] | None]:
    path.write_text("path,label\n" + "".join(f"{number}.mp4,{label}\n" for number, label in enumerate(labels)))
    found = read_parts(path)
    assert found.labels is not None
    return found.labels.tolist(), found.classes


def test_whole_numbers_stay_and_names_are_numbered(tmp_path: Path) -> None:
    """Leading zeros make a name: two classes are never made one."""
    path = tmp_path / "list.csv"
    assert labels_of(path, "-1", "0", "1") == ([-1, 0, 1], None)
    assert labels_of(path, "9223372036854775807", "12") == ([9223372036854775807, 12], None)
    assert labels_of(path, "01", "1", "02") == ([0, 2, 1], ("01", "02", "1"))
    assert labels_of(path, "run", "jump") == ([1, 0], ("jump", "run"))


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (("0", "-2"), "line 3: the label '-2' is not a class number"),
        (("cat", "3.0"), r"line 3: the label '3\.0' is not a class number"),
        (("1", "9223372036854775808"), "line 3: the label '9223372036854775808' is not a class number"),
        (("cat", "-1"), "labels are names, such as 'cat', and -1, which is none"),
    ],
)
def test_numbers_that_are_no_classes(labels: tuple[str, ...], said: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=rf"list\.csv: {said}"):
        labels_of(tmp_path / "list.csv", *labels)
