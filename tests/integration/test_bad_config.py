"""Every file of ``configs_bad`` is refused in the words of its first line."""

from pathlib import Path

import pytest

CONFIGS = sorted((Path(__file__).parents[1] / "configs_bad").glob("*.yaml"))
MARK = "# expect: "


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_bad_configuration(refused, tmp_path, path):
    first = path.read_text().splitlines()[0]
    assert first.startswith(MARK)
    message = refused("fit", "--config", path, "--out", "run")
    assert first.removeprefix(MARK) in message
    assert not (tmp_path / "owned").exists()


def test_there_are_bad_configurations():
    assert len(CONFIGS) > 30


def test_a_configuration_that_cannot_be_read(refused, tmp_path):
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "deep.yaml").write_text("[" * 3000)
    for name in ("missing.yaml", "folder.yaml", "binary.yaml", "deep.yaml"):
        message = refused("fit", "--config", name, "--out", "run")
        assert f"'{name}'" in message
