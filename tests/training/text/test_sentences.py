"""Tests of sentence ends in many scripts. tests/data/sentences.json holds texts and their sentences by language."""

import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from training.text.sentences import split_sentences

TEXTS = {
    f"{language}-{number}": text
    for language, texts in json.loads(
        (Path(__file__).parents[2] / "data" / "sentences.json").read_text(encoding="utf-8")
    ).items()
    for number, text in enumerate(texts, start=1)
}
PIECES = sorted({piece for text in TEXTS.values() for piece in re.findall(r"\w+|\W", text["text"])})


@pytest.mark.parametrize(
    ("paragraph", "sentences"),
    [
        ("One is here. Two is there! Is it three? Yes.", ["One is here.", "Two is there!", "Is it three?", "Yes."]),
        ("Mr. Smith and Dr. Jones met, e.g. Mondays.", ["Mr. Smith and Dr. Jones met, e.g. Mondays."]),
        ('He said "Go." Then he left.', ['He said "Go."', "Then he left."]),
        ("J. S. Bach wrote it. It lasts 3.5 minutes.", ["J. S. Bach wrote it.", "It lasts 3.5 minutes."]),
        ("It is approx. Five, or Xapprox. Six.", ["It is approx. Five, or Xapprox.", "Six."]),
        ("no end", ["no end"]),
        ("  ", []),
    ],
)
def test_split_sentences(paragraph, sentences):
    """Sentences end at . ! ? before a capital, but not after abbreviations and initials."""
    assert split_sentences(paragraph) == sentences


def test_abbreviations_in_a_row_cost_no_more_than_others():
    """A long row of abbreviations is split in linear time."""
    paragraph = "J. Smith, pp. " * 100_000

    assert split_sentences(paragraph) == [paragraph.strip()]


@pytest.mark.parametrize("name", TEXTS)
def test_languages(name):
    """Sentences end where readers of the language end them, and each stays whole when split again."""
    sentences = TEXTS[name]["sentences"]

    assert split_sentences(TEXTS[name]["text"]) == sentences
    assert [split_sentences(sentence) for sentence in sentences] == [[sentence] for sentence in sentences]


@pytest.mark.parametrize("mark", "。！？｡।॥؟۔։።፧။។៕།")
def test_marks_with_no_other_use_need_no_space(mark):
    """Sentence marks of other scripts end a sentence without a following space, and closing brackets stay with it."""
    for letter in "天कبԲሀကកཀ":
        assert split_sentences(f"{letter}{letter}{mark}{letter}{letter}") == [f"{letter * 2}{mark}", letter * 2]
        assert split_sentences(f"({letter}{mark}) {letter}{mark}") == [f"({letter}{mark})", f"{letter}{mark}"]


@pytest.mark.parametrize("letter", "AÉŁЖΩԱაאبकকகక๑서天あA5٣५")
@pytest.mark.parametrize("opening", ["", '"', "(", "«", "„", "“", "¿"])
def test_starts_of_sentences(letter, opening):
    """Capitals, digits and letters of scripts without capitals start a sentence after a full stop and a space."""
    assert split_sentences(f"Мы дома. {opening}{letter}{letter}") == ["Мы дома.", f"{opening}{letter}{letter}"]


@pytest.mark.parametrize("letter", "aéłжωա")
def test_small_letters_start_no_sentence(letter):
    """A small letter after a full stop starts no sentence."""
    assert len(split_sentences(f"Мы дома. {letter}{letter}")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "Es gibt z.B. Hunde, d.h. Tiere, bzw. Vögel und u.a. Katzen; das ist Nr. 5.",
        "Das ist Art. 5 und vgl. Abb. 3 auf S. 7 der Akte vom 3. Oktober.",
        "Он родился в г. Москве, т.е. Россия — в XIX в. Петербург и ул. Мира, стр. 5.",
        "Vivía con la Sra. Ruiz y el Dr. Gil, p. ej. Madrid, art. 5, pág. 7.",
        "Le Dr. Roux et M. Petit vont chez Mme. Blanc, p. ex. Paris, art. 5.",
        "Veja a Sra. Lima, p. ex. Ana, no art. 5 e na pág. 7 do séc. XX.",
        "Il sig. Rossi e l'avv. Verdi, ad es. Roma, all'art. 5 e a pag. 7.",
        "Het is bijv. Utrecht, o.a. Delft, bij dhr. Jansen en mevr. Smit op nr. 5.",
        "To jest np. Kraków, m.in. Gdańsk, prof. Nowak i ul. Długa, art. 5, nr 3.",
        "Je to např. Praha, tzv. Velká, prof. Novák a sv. Jan, č. 5.",
        "Det är t.ex. Lund och bl.a. Malmö, d.v.s. Skåne.",
        "Ο κ. Νίκου είναι π.χ. Έλληνας, βλ. Αθήνα, σελ. 5.",
        "डॉ. शर्मा और श्री. वर्मा ए. पी. जे. कलाम से मिले।",
        "وصل د. أحمد مع م. علي.",
    ],
)
def test_abbreviations(text):
    """Abbreviations and initials of other languages end no sentence."""
    assert split_sentences(text) == [text]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("It is modern art. 5 people saw it.", ["It is modern art.", "5 people saw it."]),
        ("It was the best of the r. Then we ran to the cap. 3 of us.", 3),
        ("He met Mme. Curie and the ex. Then he left.", 3),
        ("He was born on the 3. August was hot.", 2),
        ("The motto is 今天很好。 and was on the wall; 走吧！, too.", 1),
        ("The town (Greek: Αμφίπολη; Ancient Greek: Ἀμφίπολις) is old.", 1),
    ],
)
def test_english_stays_english(text, sentences):
    """Abbreviations and marks of other languages do not change the sentences of English text."""
    got = split_sentences(text)

    assert got == sentences or len(got) == sentences


ENDS_BEFORE = re.compile(r"(?<=[.!?])(?:[\"')\]”’]*)\s+(?=[\"'(\[“‘]?[A-Z0-9À-Þ])")
ABBREVIATION_BEFORE = re.compile(
    r"\b(?:[A-Z]|e\.g|i\.e|cf|vs|etc|al|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|No|Nos|Vol|Fig|Figs|Eq|Sec|Ref|pp|ca|approx|Gen|Col|Lt"
    r"|Capt|Rev|Hon|Inc|Ltd|Co|Jan|Feb|Mar|Apr|Aug|Sep|Sept|Oct|Nov|Dec)\.$"
)


def split_english(paragraph):
    """Split with the earlier rule, which knew English only."""
    sentences, start = [], 0
    for match in ENDS_BEFORE.finditer(paragraph):
        if not ABBREVIATION_BEFORE.search(paragraph, max(start, match.start() - 7), match.start()):
            sentences.append(paragraph[start : match.end()].strip())
            start = match.end()
    return [sentence for sentence in [*sentences, paragraph[start:].strip()] if sentence]


ENGLISH = (
    "the of and was to in is art cap ed vol tel fig p s str np Art no Mr Dr e.g i.e etc cf pp No approx Jan J S É café "
    "The He It She Then Å naïve 3 12 1999 3.5 August"
).split()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(ENGLISH),
            st.sampled_from(
                ["", "", ".", ".", "!", "?", "...", "?!", ",", ";", ":", '."', ".”", "!’", ".)", "’s", " —", "."]
            ),
            st.sampled_from([" ", " ", " ", "", "  ", "\n", "\u00a0", ' "', " “", " ‘", " (", " [", " — ", "-"]),
        ),
        max_size=40,
    )
)
def test_english_splits_as_before(words):
    """English text gives the same sentences as with the earlier rule."""
    text = "It was the best of the times and " + "".join(map("".join, words))

    assert split_sentences(text) == split_english(text)


@given(
    st.lists(st.sampled_from([*PIECES, " ", " ", ". ", "。", '"', "“", "”", "\u3000", "। १ ॥"]), max_size=40).map(
        "".join
    )
)
@example('。"天')
@example('天。"。天')
def test_sentences_are_the_text(text):
    """No sentence is empty, and the joined sentences give the text except for spaces."""
    sentences = split_sentences(text)

    assert all(sentence == sentence.strip() != "" for sentence in sentences)
    assert "".join("".join(sentences).split()) == "".join(text.split())


@pytest.mark.parametrize(
    "piece", [" ", ".", '"', "。", '。"', "। ", "1", "»", "—", "art. 5 ", "а. ", "! ", "ไ ", "፡", "₁. ", "A. A"]
)
@pytest.mark.parametrize("start", ["", "天।", "x. "])
def test_time_is_linear(start, piece):
    """Splitting a text 20 times as long takes less than 200 times as long, whatever is repeated."""

    def seconds(count):
        text = start + piece * (count // len(piece))
        begin = time.process_time()
        split_sentences(text)
        return time.process_time() - begin

    assert seconds(40_000) < 200 * max(min(seconds(2_000) for _ in range(3)), 2e-4)
