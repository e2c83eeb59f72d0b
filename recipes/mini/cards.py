"""Notes in the cards of the shipped models: data sources, licences and limits."""

from __future__ import annotations

PRETRAINED = "pretrained"
"""Name of the notes of the pretrained checkpoint."""


_TEXT = (
    ("English Wikipedia of 2015, 21 million words", "CC BY-SA"),
    ("171 books in English from before 1926, 14 million words", "public domain"),
)
_QUESTIONS = (
    ("SQuAD v1.1 and v2.0, 5,449 training questions, 348 of them without an answer", "CC BY-SA 4.0"),
    ("SQuADShifts, 27,626 questions", "not stated at its source; known as CC BY 4.0"),
)
_APACHE = "Apache 2.0; see its model card for its training data"
_MINILM = ("weights of all-MiniLM-L6-v2", _APACHE)
_CROSS_ENCODER = (
    (
        "weights and numbers of ms-marco-MiniLM-L-12-v2",
        "Apache 2.0; its data, MS MARCO, are for non-commercial research",
    ),
    ("texts for queries, found with all-MiniLM-L6-v2", "Apache 2.0"),
)
_TEACHER = ("probabilities of all-mpnet-base-v2, fine-tuned on the labelled data below", _APACHE)
_CONTEXTS = (
    "paragraphs of SQuAD and SQuADShifts, without questions",
    "CC BY-SA 4.0; SQuADShifts not stated at its source, known as CC BY 4.0",
)
_ENGLISH = "English in lower case only."
_LIMITS = (
    f"{_ENGLISH} Pretrained on 35 million words, about 1% of BERT's pretraining text.",
    "Little knowledge of the world, and none after 2015.",
    "The books contain the prejudices of their time.",
)
"""Limits of the models that start from our own pretrained networks."""
_NOTES: dict[str, tuple[tuple[tuple[str, str], ...], tuple[str, ...]]] = {
    PRETRAINED: ((), ("The scores were measured before the weights were rounded to 16 bits.",)),
    "embed": (
        (_MINILM, *_QUESTIONS),
        (
            "all-MiniLM-L6-v2 with the 10,752 word pieces that English texts use most, trained further on questions "
            "with their paragraphs.",
            "No text of STS-B dev was in our training data; the original's were not checked. Words alone have 67.4.",
        ),
    ),
    "rerank": (
        (*_CROSS_ENCODER, *_QUESTIONS),
        (
            "Starts from six layers of its teacher, with the 10,752 word pieces that English texts use most.",
            "A score says how likely a text answers a query. Compare the scores of one query only.",
            "Words that query and text share count much, as for the teacher.",
        ),
    ),
    "answer": (
        (_MINILM, *_QUESTIONS),
        (
            "all-MiniLM-L6-v2 with the 10,752 word pieces that English texts use most, trained on questions with and "
            "without an answer; most of the latter were made by rules.",
            'Says "no answer" where a text only seems to have one, and often where it has one: the scores tell how '
            "often.",
        ),
    ),
    "sentiment": (
        (_TEACHER, ("SST-2, 67,349 phrases of film reviews", "not stated; made for research"), _CONTEXTS),
        ("Labels come from film reviews only. Neutral text gets a label, too: check the score.",),
    ),
    "topic": (
        (_TEACHER, ("AG News, 13,462 of 120,000 articles of 2004", "research and non-commercial use")),
        ("Four topics only: World, Sports, Business, Sci/Tech. News of 2004.",),
    ),
    "tag": (
        (
            _TEACHER,
            ("WikiANN, 20,000 sentences and titles of Wikipedia", "not stated; text of Wikipedia, CC BY-SA"),
            ("WNUT-17, 3,394 sentences of posts", "CC BY 4.0"),
            _CONTEXTS,
        ),
        ("People, places and organisations; most labels were generated automatically, from links in Wikipedia.",),
    ),
}
"""Further data with their licences, and limits, of each model."""


def notes(name: str) -> str:
    """Return the notes of a card as Markdown."""
    sources, own_limits = _NOTES[name]
    rows = [f"| {data} | {licence} |" for data, licence in (*_TEXT, *sources)]
    limits = [
        f"- {limit}" for limit in (*own_limits, *((_ENGLISH,) if name in ("answer", "embed", "rerank") else _LIMITS))
    ]
    return "\n".join(
        [
            "## Sources and their licences\n",
            "| data | licence or terms |",
            "|---|---|",
            *rows,
            "\nIf a licence restricts the use of the data, for example commercially, check whether this applies to the",
            "model.\n",
            "## Further limits\n",
            *limits,
            "",
        ]
    )
