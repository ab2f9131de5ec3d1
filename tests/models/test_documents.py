"""Documents: what is read, how it is cut, what is refused and how that reads."""

from __future__ import annotations

import json

import pytest

from headwise.errors import UserError
from headwise.models.documents import MIN_TOKENS, Text, cut_pieces, read_documents, special_tokens, without_identical
from tests.study.tiny import tokenizer, words


def test_without_a_path_the_help_topics_of_python_are_read():
    texts = read_documents(None)
    assert len(texts) > 60
    assert any("operator" in text.text for text in texts)


def test_a_folder_gives_one_document_a_file_in_the_order_of_names(tmp_path):
    (tmp_path / "b.txt").write_text("second", encoding="utf-8")
    (tmp_path / "a.md").write_text("first", encoding="utf-8")
    (tmp_path / "image.png").write_bytes(b"\x89PNG\0")
    assert [(text.name, text.text) for text in read_documents(tmp_path)] == [("a.md", "first"), ("b.txt", "second")]


def test_jsonl_gives_one_document_a_line(tmp_path):
    file = tmp_path / "texts.jsonl"
    file.write_text("\n".join(json.dumps({"text": text}) for text in ("één", "twee")) + "\n\n", encoding="utf-8")
    assert [text.text for text in read_documents(file)] == ["één", "twee"]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("empty.txt", b"  \n", "empty; expected text of at least 16 tokens"),
        ("image.png", b"\x89PNG\r\n\x1a\n", "not UTF-8 text (byte 0)"),
        ("zero.bin", b"a\0b", "a binary file (it holds a zero byte)"),
        ("broken.jsonl", b'{"text": "a"}\n{"text": ', "line 2: not JSON"),
        ("other.jsonl", b'{"body": "a"}\n', 'line 1: expected an object with a string under "text"'),
        ("list.jsonl", b"[1]\n", 'line 1: expected an object with a string under "text"'),
    ],
)
def test_what_is_not_text_is_refused_by_name(tmp_path, name, content, told):
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(UserError) as refused:
        read_documents(file)
    assert str(file) in str(refused.value)
    assert told in str(refused.value)


def test_a_missing_file_and_an_empty_folder_are_refused(tmp_path):
    with pytest.raises(UserError, match="no such file or folder"):
        read_documents(tmp_path / "nothing.txt")
    with pytest.raises(UserError, match=r"no \.txt, \.md or \.rst file in this folder"):
        read_documents(tmp_path)


def test_of_identical_texts_the_first_stays_and_the_others_are_counted():
    said = ["one", "two", "one", "three", "one ", "two", "One"]
    kept, left_out = without_identical([Text(f"{number}", text) for number, text in enumerate(said)])
    assert [(text.name, text.text) for text in kept] == [
        ("0", "one"), ("1", "two"), ("3", "three"), ("4", "one "), ("6", "One"),
    ]  # fmt: skip
    assert left_out == 2
    assert without_identical(kept) == (kept, 0)
    assert without_identical([]) == ([], 0)


def _texts(count: int, length: int) -> list[Text]:
    return [Text(f"t{number}", " ".join(words()[number + 2 : number + 2 + length])) for number in range(count)]


def test_one_piece_a_document_where_there_are_enough():
    pieces, notes = cut_pieces(_texts(13, 97), tokenizer(wrapped=False), 11, 31, seed=5)
    assert len(pieces) == 11
    assert len({piece.document for piece in pieces}) == 11
    assert {len(piece.tokens) for piece in pieces} == {31}
    assert notes == []
    assert pieces == cut_pieces(_texts(13, 97), tokenizer(wrapped=False), 11, 31, seed=5)[0]
    assert pieces != cut_pieces(_texts(13, 97), tokenizer(wrapped=False), 11, 31, seed=6)[0]


def test_one_document_gives_several_pieces_and_a_note():
    pieces, notes = cut_pieces(_texts(1, 150), tokenizer(wrapped=False), 11, 31, seed=0)
    assert [len(piece.tokens) for piece in pieces] == [31, 31, 31, 31, 26]
    assert len({piece.tokens for piece in pieces}) == 5
    assert "only 1 document(s)" in notes[0]


def test_pieces_of_an_encoder_are_wrapped_in_its_special_tokens():
    wrapped = tokenizer(wrapped=True)
    assert special_tokens(wrapped) == ([1], [2])
    assert special_tokens(tokenizer(wrapped=False)) == ([], [])
    pieces, _ = cut_pieces(_texts(9, 97), wrapped, 9, 31, seed=0)
    assert all(piece.tokens[0] == 1 and piece.tokens[-1] == 2 and len(piece.tokens) == 31 for piece in pieces)


def test_text_that_is_too_short_is_refused():
    with pytest.raises(UserError, match=f"fewer than {MIN_TOKENS} tokens"):
        cut_pieces(_texts(9, MIN_TOKENS - 1), tokenizer(wrapped=False), 9, 31, seed=0)
    assert len(cut_pieces(_texts(9, MIN_TOKENS), tokenizer(wrapped=False), 9, 31, seed=0)[0]) == 9
