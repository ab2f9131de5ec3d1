"""The folder that a model is saved in: what stood there, and what a failure leaves."""

from __future__ import annotations

import os
import signal

import pytest

from headwise.errors import UserError
from headwise.models import load
from headwise.surgery.export import export
from tests.models import tiny
from tests.surgery.resized import resized, whole


def test_what_stands_there_is_kept(tmp_path):
    checkpoint = whole("llama")
    folder = export(checkpoint, tmp_path / "model")
    with pytest.raises(UserError, match="exists already"):
        export(checkpoint, folder)
    export(resized("llama", 3, 1), folder, overwrite=True)
    assert load(folder).layouts[0].num_heads == 3
    (folder / "headwise.json").unlink()
    with pytest.raises(UserError, match=r"not what headwise writes as a model \(no headwise.json\), so not even"):
        export(checkpoint, folder, overwrite=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        export(checkpoint, tmp_path / "file" / "model")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "model"]


@pytest.mark.parametrize(("error", "raised"), [(OSError(28, "No space left"), UserError), (KeyboardInterrupt(), None)])
def test_a_failure_leaves_nothing_behind(tmp_path, monkeypatch, error, raised):
    checkpoint = whole("llama")

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(type(checkpoint.tokenizer), "save_pretrained", fail)
    with pytest.raises(raised or type(error)):
        export(checkpoint, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_killed_process_leaves_no_folder_of_that_name(tmp_path, monkeypatch):
    checkpoint = whole("llama")
    written = type(checkpoint.tokenizer).save_pretrained

    def die(self, folder):
        written(self, folder)
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        try:
            monkeypatch.setattr(type(checkpoint.tokenizer), "save_pretrained", die)
            export(checkpoint, tmp_path / "model")
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert not (tmp_path / "model").exists()
    assert len(list(tmp_path.iterdir())) == 1  # what it had begun beside
    export(checkpoint, tmp_path / "model")
    assert load(tmp_path / "model").num_layers == tiny.LAYERS
