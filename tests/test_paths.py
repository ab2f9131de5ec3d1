from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headwise.paths import cache_folder


def test_headwise_cache_names_the_folder(tmp_path):
    assert cache_folder({"HEADWISE_CACHE": str(tmp_path), "XDG_CACHE_HOME": "/elsewhere"}) == tmp_path


def test_a_relative_or_home_folder_becomes_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cache_folder({"HEADWISE_CACHE": "kept"}) == tmp_path / "kept"
    assert cache_folder({"HEADWISE_CACHE": "~/kept"}) == Path.home() / "kept"


def test_the_user_cache_folder_is_used_without_it(tmp_path):
    assert cache_folder({"HEADWISE_CACHE": "", "XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "headwise"


@pytest.mark.parametrize(
    ("platform", "variables", "below_home"),
    [
        ("linux", {}, ".cache"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, ".cache"),
        ("darwin", {}, "Library/Caches"),
        ("win32", {}, ".cache"),
    ],
)
def test_each_platform_has_its_own_default(platform, variables, below_home, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    assert cache_folder(variables) == Path.home() / below_home / "headwise"


def test_windows_names_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    assert cache_folder({"LOCALAPPDATA": str(tmp_path)}) == tmp_path / "headwise"


def test_the_environment_of_the_process_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
