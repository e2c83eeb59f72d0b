"""Collections in BEIR's layout, their scores, and search by words."""

import gzip
import json
import math
import random

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

from recipes.retrieval import Collection, WordIndex, fused, ranking_scores, read_collection

TEXTS = ["the cat sat", "a dog and a dog", "the long story of one dog that nobody ever saw again"]
DOCUMENTS = [{"_id": "a", "title": "Cats", "text": "sleep."}, {"_id": 2, "title": None, "text": "A dog."}]
FILES = {
    "corpus.jsonl": [*DOCUMENTS, {"_id": "blank", "title": "", "text": " "}],
    "queries.jsonl": [{"_id": "q", "text": "cat"}, {"_id": "unjudged", "text": ""}],
    "qrels/test.tsv": ["query-id\tcorpus-id\tscore", "q\ta\t2", "q\tlost\t1", "gone\ta\t1"],
}


def write(folder, **changes):
    """Write a collection with changed files; the value of a change is its lines, bytes, or None for no file."""
    (folder / "qrels").mkdir(parents=True)
    for name, lines in (FILES | changes).items():
        if lines is not None:
            text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
            (folder / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())


def test_collections_are_read_whole(tmp_path):
    """Titles stand before texts, numbers are ids, unjudged queries are left out, and what is missing is counted."""
    write(tmp_path, **{"corpus.jsonl": None, "corpus.jsonl.gz": FILES["corpus.jsonl"]})

    found = read_collection(tmp_path, "test")

    assert found.documents == {"a": "Cats sleep.", "2": "A dog."}
    assert (found.queries, found.grades) == ({"q": "cat"}, {"q": {"a": 2, "lost": 1}})
    assert [note.rpartition(": ")[2] for note in found.notes] == ["1.", "1.", "1."]


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("qrels/test.tsv", None, "no file `.*test.tsv`"),
        ("qrels/test.tsv", ["q\t0\ta\t2", "q\t0\ta\t1"], "test.tsv`, line 2: no column `query-id`"),
        (
            "qrels/test.tsv",
            [FILES["qrels/test.tsv"][0], "q\ta\t0.5"],
            "line 2: the score must be a whole number: `0.5`",
        ),
        ("qrels/test.tsv", [*FILES["qrels/test.tsv"], "q\ta\t1"], "line 5: a second, other score of `a`"),
        ("qrels/test.tsv", [FILES["qrels/test.tsv"][0], "z\ta\t1"], "has no judged queries"),
        ("queries.jsonl", [{"_id": "q", "text": " "}], "the query `q` is blank"),
        ("queries.jsonl", [{"_id": "q", "text": None}], "queries.jsonl`, line 1: `text`, and `title` if there is one"),
        ("corpus.jsonl", [{"id": "a", "text": "b"}], "corpus.jsonl`, line 1: expected an `_id`"),
        ("corpus.jsonl", [{"_id": True, "text": "b"}], "line 1: expected an `_id`"),
        ("corpus.jsonl", [*DOCUMENTS, {"_id": "2", "text": "b"}], "line 3: a second `_id` `2`"),
        ("corpus.jsonl", [{"_id": "a", "title": ["b"], "text": "c"}], "line 1: `text`, and `title`"),
        ("corpus.jsonl", [{"_id": "a", "text": ""}], "has no documents with text"),
        ("corpus.jsonl", ["[1]"], "line 1: expected a JSON object"),
    ],
)
def test_mistakes_name_file_and_line(tmp_path, name, lines, message):
    """Rows that cannot be read are refused, not left out."""
    write(tmp_path, **{name: lines})

    with pytest.raises(ValueError, match=message):
        read_collection(tmp_path, "test")


@pytest.mark.parametrize(
    ("query", "grades", "copies"),
    [("Owls  fly.", {"d": 1}, {"a"}), ("Owls fly.", {"a": 1}, set()), ("other", {"d": 1}, set())],
)
def test_queries_that_are_documents(query, grades, copies):
    """A query does not find itself; an equal id alone, or a judgement that it should, changes nothing."""
    documents = {"a": "On birds. Owls fly.", "d": "Owls fly."}

    assert Collection.of("name", documents, {"a": query}, {"a": grades}).copies == copies


def test_scores_are_those_of_others():
    """Scores of random rankings are those of trec_eval and, for nDCG, of scikit-learn."""
    rng = random.Random(0)
    keys = [f"d{number}" for number in range(150)]
    for _ in range(50):
        grades = {key: rng.choice([-1, 0, 0, 1, 2, 3]) for key in rng.sample([*keys, "lost"], rng.randint(1, 120))}
        ranked = rng.sample(keys, rng.choice([0, 3, 150]))

        found = ranking_scores(ranked, grades)

        gains = [[max(0, grades.get(key, 0)) for key in [*keys, "lost"]]]
        order = [[-ranked.index(key) if key in ranked else -1000 for key in [*keys, "lost"]]]
        if len(ranked) > 10:
            assert found["nDCG@10"] == pytest.approx(100 * ndcg_score(gains, order, k=10))
        pytrec_eval = pytest.importorskip("pytrec_eval", reason="pytrec_eval comes with the group `mteb`")
        scorer = pytrec_eval.RelevanceEvaluator({"q": grades}, {"ndcg_cut.10", "recall.100", "recip_rank"})
        expected = scorer.evaluate({"q": {key: -float(rank) for rank, key in enumerate(ranked)}}).get("q", {})
        first = expected.get("recip_rank", 0.0)
        assert list(found.values()) == pytest.approx(
            [
                100 * expected.get("ndcg_cut_10", 0.0),
                100 * expected.get("recall_100", 0.0),
                100 * first * (first >= 0.1),
            ]
        )


def test_search_by_words():
    """Rare words count more, longer texts less, a repeated word less than twice, and unknown ones nothing."""
    index = WordIndex(TEXTS)
    dog, cat, the, nothing = (index.scores(query) for query in ("dog", "Cat!", "the", "nothing ?"))

    assert dog[1] > dog[2] > dog[0] == 0
    assert dog[1] < 2 * WordIndex(["the cat sat", "a dog and a cow", TEXTS[2]]).scores("dog")[1]
    assert cat[0] > the[0] > 0
    assert not nothing.any()
    assert not WordIndex(["?", "!"]).scores("a").any()
    # by hand: idf = ln(1 + 2.5 / 1.5); the text has 3 words of a mean of 19 / 3
    assert cat[0] == pytest.approx(math.log(1 + 2.5 / 1.5) / (1 + 1.2 * (0.25 + 0.75 * 3 / (19 / 3))))


def test_fused_rankings():
    """The sum of 1 / (60 + rank) orders documents; equal sums keep the first ranking's order."""
    first, second = [4, 7, 1], [1, 9, 4]

    found = fused([first, second])

    sums = {key: np.sum([1 / (61 + ranks.index(key)) for ranks in (first, second) if key in ranks]) for key in found}
    assert found == [4, 1, 7, 9]
    assert sums[4] == sums[1] > sums[7] == sums[9]
