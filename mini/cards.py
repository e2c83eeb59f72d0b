"""What the cards of the shipped models say of their data: where they come from, what their licences allow, what the
models are no good for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PRETRAINED = "pretrained"
"""Of the checkpoint itself."""


@dataclass(frozen=True, slots=True)
class Source:
    """Some data."""

    what: str
    licence: str


@dataclass(frozen=True, slots=True)
class Note:
    """What a card says of one model."""

    sources: Sequence[Source]
    limits: Sequence[str]


_TEXT = (
    Source("English Wikipedia of 2015, 21 million words", "CC BY-SA"),
    Source("171 books in English from before 1926, 14 million words", "public domain"),
)
_QUESTIONS = (
    Source("SQuAD v1.1 and v2.0, 5,101 training questions", "CC BY-SA 4.0"),
    Source("SQuADShifts, 27,626 questions", "none stated where it was taken from; known as CC BY 4.0"),
)
_LIMITS = (
    "English, lower case. It has read 35 million words, a hundredth of what BERT has.",
    "It knows how words go together, and little about the world; nothing after 2015.",
    "Its books speak as their century did, with its prejudices.",
)
"""Of all of them."""
_NOTES = {
    PRETRAINED: Note((), ("Its scores were taken before its weights were rounded to 16 bits.",)),
    "embed": Note(
        (
            Source("pairs made of the same text", "as above"),
            Source(
                "paraphrases of MRPC", "none stated where it was taken from; known to have Microsoft Research terms"
            ),
            Source("entailments of RTE", "none stated"),
            *_QUESTIONS,
        ),
        (
            "Vectors tell what texts are about, better for sentences than for words or pages.",
            "Pairs and settings were chosen on STS-B dev: the score there is optimistic. Common words alone have 69.2.",
        ),
    ),
    "sentiment": Note(
        (Source("SST-2, 67,349 phrases of film reviews", "none stated; made for research"),),
        ("It has read film reviews alone. What is neutral gets a label all the same: look at the score.",),
    ),
    "topic": Note(
        (Source("AG News, 13,462 of 120,000 articles of 2004", "research and non-commercial use"),),
        ("Four topics and no other: World, Sports, Business, Sci/Tech. News of 2004.",),
    ),
    "tag": Note(
        (Source("WikiANN, 20,000 sentences and titles of Wikipedia", "none stated; text of Wikipedia, CC BY-SA"),),
        ("People, places and organisations in encyclopedic text; labels were made by machine.",),
    ),
}


def notes(name: str) -> str:
    """Those of a card, in Markdown."""
    note = _NOTES[name]
    rows = [f"| {source.what} | {source.licence} |" for source in (*_TEXT, *note.sources)]
    limits = [f"- {limit}" for limit in (*note.limits, *_LIMITS)]
    return "\n".join(
        [
            "## Sources and their licences\n",
            "| data | licence or terms |",
            "|---|---|",
            *rows,
            "\nWhere a licence forbids something, as commercial use, ask yourself whether that holds for this model.\n",
            "## Further limits\n",
            *limits,
            "",
        ]
    )
