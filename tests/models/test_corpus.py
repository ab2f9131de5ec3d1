"""Documents in two parts that share none, and rows cut from them: of whose text, how many, in what order."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from headwise.errors import UserError
from headwise.models.corpus import cut_rows, fingerprint, split_documents
from headwise.models.documents import Text
from tests.study.tiny import tokenizer, words


def documents(count: int = 43, length: int = 53, seed: int = 0) -> list[Text]:
    """Of different random words each, up to three times as long as others."""
    drawn = random.Random(seed)
    return [
        Text(f"{number}", " ".join(drawn.choices(words()[2:], k=length * (1 + number % 3)))) for number in range(count)
    ]


def names(texts) -> set[str]:
    return {fingerprint(text) for text in texts}


def test_each_document_is_on_one_side_and_a_quarter_is_held_out():
    texts = documents(400)
    corpus = split_documents(texts)
    assert names(corpus.working) | names(corpus.held_out) == names(texts)
    assert not names(corpus.working) & names(corpus.held_out)
    assert len(corpus.working) + len(corpus.held_out) == 400
    assert 70 < len(corpus.held_out) < 130
    assert corpus.notes == ()


def test_the_side_of_a_document_is_told_by_its_text_whatever_its_name_order_and_company():
    few, more = documents(43), documents(90, seed=1)
    renamed = [Text(f"other {text.name}", text.text) for text in reversed(few)]
    alone, together = split_documents(few), split_documents([*more, *renamed, *few])
    assert names(alone.held_out) == names(together.held_out) & names(few)
    assert names(alone.working) == names(together.working) & names(few)
    assert len(together.working) + len(together.held_out) == 133, "a document that comes twice counts once"
    assert (alone.identical_left_out, together.identical_left_out) == (0, 43)


def test_few_documents_are_divided_by_parts_and_that_is_said():
    texts = [Text("book", " ".join(random.Random(0).choices(words()[2:], k=40_000)))]
    corpus = split_documents(texts)
    parts = [*corpus.working, *corpus.held_out]
    assert Counter(text.text for text in parts) == Counter(
        texts[0].text[start : start + 12_000] for start in range(0, len(texts[0].text), 12_000)
    )
    assert corpus.working
    assert corpus.held_out
    assert corpus.notes[0].startswith("only 1 document(s): parts of 12,000 characters count as documents")


@pytest.mark.parametrize("texts", [[Text("one", "a short text")], [Text("a", "twice"), Text("b", "twice")]])
def test_what_cannot_be_divided_is_refused(texts):
    with pytest.raises(UserError, match=r"expected enough text to hold a part of it out \(24,000 characters\), got"):
        split_documents(texts)


def test_copies_of_few_documents_do_not_make_them_many():
    """Thirteen times the same long text is one document, which is divided by parts."""
    text = " ".join(random.Random(0).choices(words()[2:], k=11_000))
    once, often = split_documents([Text("0", text)]), split_documents([Text(f"{n}", text) for n in range(13)])
    assert names(often.working) == names(once.working)
    assert names(often.held_out) == names(once.held_out)
    assert often.notes == once.notes
    assert (once.identical_left_out, often.identical_left_out) == (0, 12)
    with pytest.raises(UserError, match=r"got 5 \(12 identical left out\)$"):
        split_documents([Text(f"{n}", "twice") for n in range(13)])


def test_identical_parts_of_few_documents_are_counted_too():
    """The second book is the first without its first two parts, and 3 parts of 12,000 characters remain the same."""
    text = "".join(random.Random(0).choices("abcdefgh ", k=5 * 12_000 - 7))
    corpus = split_documents([Text("a", text), Text("b", text[2 * 12_000 :]), Text("c", text)])
    assert len(corpus.working) + len(corpus.held_out) == 5
    assert corpus.identical_left_out == 1 + 3
    assert corpus.notes[0].startswith("only 2 document(s)")


@pytest.mark.parametrize("wrapped", [False, True])
def test_rows_are_stretches_of_the_documents_that_they_are_told_to_be_of(wrapped):
    texts, words_of = [*documents(), *documents(17, length=5, seed=1)], tokenizer(wrapped=wrapped)
    rows = cut_rows(texts, words_of, tokens=61 * 19 - 5, length=19, seed=3, what="the test")
    assert rows.tokens.shape == (61, 19)
    assert len(set(rows.documents)) == len(rows.documents) == len(set(rows.units)) == max(rows.units) + 1
    by_name = {fingerprint(text): words_of(text.text, add_special_tokens=False)["input_ids"] for text in texts}
    seen: Counter[int] = Counter()
    before, after = ([words_of.cls_token_id], [words_of.sep_token_id]) if wrapped else ([], [])
    room = 19 - len(before) - len(after)
    for row, unit in zip(rows.tokens.tolist(), rows.units, strict=True):
        start = seen[unit] * room
        assert row == [*before, *by_name[rows.documents[unit]][start : start + room], *after]
        seen[unit] += 1


def test_each_document_gives_its_first_row_before_any_gives_its_second():
    rows = cut_rows(documents(), tokenizer(wrapped=False), tokens=61 * 19, length=19, seed=3, what="the test")
    assert len(set(rows.units[:43])) == 43
    one_each = cut_rows(documents(), tokenizer(wrapped=False), tokens=31 * 19, length=19, seed=3, what="the test")
    assert one_each.units == tuple(range(31))
    assert one_each.tokens.tolist() == rows.tokens[:31].tolist()


def test_the_seed_draws_the_documents():
    first, again, other = (
        cut_rows(documents(), tokenizer(wrapped=False), tokens=190, length=19, seed=seed, what="the test")
        for seed in (3, 3, 4)
    )
    assert first.tokens.tolist() == again.tokens.tolist()
    assert set(first.documents) != set(other.documents)


def test_too_little_text_and_rows_without_room_are_refused():
    with pytest.raises(UserError, match=r"expected 19,000 tokens in rows of 19 for training, got 4,0\d\d in 43 docu"):
        cut_rows(documents(), tokenizer(wrapped=False), tokens=19_000, length=19, seed=0, what="training")
    for length in (1, 2):
        with pytest.raises(UserError, match=f"more than the 2 special tokens around each for training, got {length}"):
            cut_rows(documents(), tokenizer(wrapped=True), tokens=19, length=length, seed=0, what="training")


def quoting(count: int = 43, paragraphs: int = 5) -> list[Text]:
    """Documents of paragraphs of which each is also in the next document, wrapped otherwise."""
    drawn = random.Random(0)
    own = [" ".join(drawn.choices(words()[2:], k=31)) for _ in range(count * paragraphs)]
    texts = []
    for number in range(count):
        first = number * paragraphs
        quoted = own[first - 1].replace(" ", "\n", 7)
        texts.append(Text(f"{number}", "\n\n".join([*own[first : first + paragraphs], quoted, "Examples"])))
    return texts


def paragraphs_of(texts) -> set[str]:
    return {" ".join(each.split()) for text in texts for each in text.text.split("\n\n")}


def test_no_paragraph_stands_on_both_sides_wherever_its_lines_break():
    texts = quoting()
    corpus = split_documents(texts)
    plain = split_documents([Text(text.name, text.text.rpartition("\n\n")[0]) for text in texts])
    assert paragraphs_of(corpus.working) & paragraphs_of(corpus.held_out) == {"Examples"}, "a heading is no quotation"
    assert corpus.paragraphs_left_out > 0
    whole = {text.name: text.text for text in texts}
    assert all(whole[text.name] == text.text for text in corpus.held_out), "what judges stays whole"
    gone = sum(len(paragraphs_of([Text("", whole[text.name])]) - paragraphs_of([text])) for text in corpus.working)
    assert gone == corpus.paragraphs_left_out
    assert plain.notes == ()


def test_a_document_that_lost_a_paragraph_keeps_its_name_and_side():
    """Commands know documents by their fingerprints, whatever other documents stood beside them."""
    texts = quoting()
    corpus = split_documents(texts)
    assert names(corpus.working) | names(corpus.held_out) == names(texts)
    assert any(text.whole for text in corpus.working)
    rows = cut_rows(corpus.working, tokenizer(wrapped=False), tokens=700, length=7, seed=0, what="the test")
    assert set(rows.documents) <= names(texts)


def test_documents_without_a_paragraph_of_their_own_are_refused():
    shared = "\n\n".join(" ".join(random.Random(seed).choices(words()[2:], k=31)) for seed in range(3))
    texts = [Text(f"{number}", f"{shared}\n\n{number}") for number in range(43)]
    corpus = split_documents(texts)
    assert all(len(text.text) <= 2 for text in corpus.working), "a short line of its own is what remains"
    with pytest.raises(UserError, match=r"expected text that is not held out as well, got 43 documents whose para"):
        split_documents([Text(f"{number}", f"{shared}{' ' * number}") for number in range(43)])


def test_help_topics_that_quote_each_other_share_no_stretch():
    """Of stretches of 80 characters of held-out topics 36 % stood in a working topic while paragraphs were left in."""
    from headwise.models.corpus import read_corpus

    corpus = read_corpus(None)
    working = "\0".join(" ".join(text.text.split()) for text in corpus.working)
    held_out = [" ".join(text.text.split()) for text in corpus.held_out]
    stretches = [text[start : start + 80] for text in held_out for start in range(0, len(text) - 80, 37)]
    assert len(stretches) > 1_000
    assert sum(stretch in working for stretch in stretches) < 0.01 * len(stretches)
