"""What a message says to install can be typed as it stands."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from unittest import mock

import pytest

from datapipe.core.environment import extra, install_command


def _said(noted: str | None) -> str:
    """Return the line of a package of which pip noted this."""
    extra.cache_clear()
    found = mock.Mock(spec=metadata.Distribution)
    found.read_text.return_value = noted
    with mock.patch.object(metadata, "distribution", return_value=found):
        said = install_command("video")
    extra.cache_clear()
    return said


def test_an_extra_is_installed_from_the_folder_that_the_package_is_from(tmp_path: Path) -> None:
    folder = tmp_path / "a clone"
    folder.mkdir()
    noted = json.dumps({"url": folder.as_uri(), "dir_info": {}})
    assert _said(noted) == "pip install 'gpu-datapipe[video]'", "the folder is no project any more"
    (folder / "pyproject.toml").touch()
    assert _said(noted) == f"pip install '{folder}[video]'"


def test_an_extra_of_a_repository() -> None:
    noted = json.dumps({"url": "https://host/datapipe.git", "vcs_info": {"vcs": "git", "commit_id": "0"}})
    assert _said(noted) == "pip install 'gpu-datapipe[video] @ git+https://host/datapipe.git'"


@pytest.mark.parametrize(
    "noted", [None, "{", "{}", '{"url": "https://host/x.whl", "archive_info": {}}', '{"dir_info": {}}', "[]"]
)
def test_without_a_folder_it_is_the_package_by_its_name(noted: str | None) -> None:
    assert _said(noted) == "pip install 'gpu-datapipe[video]'"
