"""Retrieval scores of small served models, compared with searches one by one."""

import json
import lzma
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import benchmarks.best_effort
import benchmarks.retrieval_scores
from benchmarks.retrieval_scores import Searcher, choose_models, measure
from bertline import Client
from recipes.retrieval import Collection, fused, ranking_scores
from tasks.small_vectors import calibrate, restored
from tests.commands import call
from tests.serving.conftest import serve
from tests.serving.models import WORDS, write_model

RNG = np.random.default_rng(0)
TEXTS = [" ".join(RNG.choice(WORDS, size=1 + number % 9)) for number in range(40)]
QUERIES = [" ".join(RNG.choice(WORDS, size=3)) for _ in range(8)]
GRADES = {f"q{number}": {f"d{key}": int(RNG.integers(4)) for key in RNG.choice(40, 6)} for number in range(8)}
DOCUMENTS = {f"d{number}": text for number, text in enumerate(TEXTS)}
COLLECTION = Collection.of("toy", DOCUMENTS, {f"q{number}": text for number, text in enumerate(QUERIES)}, GRADES)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """Return a client of a server with models that make vectors or rank, and one that does neither."""
    models = tmp_path_factory.mktemp("models")
    vectors = RNG.normal(size=(100, 8))
    small = calibrate(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    write_model(models, "embedder", small_vectors=small)
    tasks = {"sparse": "sparse-embedding", "tokens": "token-embedding", "scorer": "regression", "tagger": "tagging"}
    for seed, (name, task) in enumerate(tasks.items()):
        write_model(models, name, task=task, seed=seed)
    with serve(models) as running, Client(running.target) as made:
        yield made


@pytest.fixture
def searcher(client, monkeypatch):
    """Return a searcher of the toy collection that takes its documents in several chunks."""
    monkeypatch.setattr(benchmarks.retrieval_scores, "CHUNK", 7)
    return Searcher(client, COLLECTION, "")


def similarities(client, name):
    """Return the similarity of each query and document by kind of vectors, from calls for single texts."""
    if name == "tokens":  # MaxSim of the server
        found = [client.rerank([(query, TEXTS)], model=name, raw_scores=True)[0].documents for query in QUERIES]
        ordered = [sorted(ranked, key=lambda item: item.document) for ranked in found]
        return {"tokens": np.array([[item.score for item in items] for items in ordered])}
    if name == "sparse":
        dense = {}
        for kind, texts in (("query", QUERIES), ("document", TEXTS)):
            vectors = [client.embed_sparse([text], model=name, input_type=kind)[0] for text in texts]
            dense[kind] = np.zeros((len(texts), vectors[0].dim))
            for row, vector in zip(dense[kind], vectors, strict=True):
                row[vector.indices] = vector.values
        return {"sparse": dense["query"] @ dense["document"].T}
    embed = partial(client.embed, model=name, normalize=True)
    queries = np.concatenate([embed([text], input_type="query") for text in QUERIES])
    documents = np.concatenate([embed([text], input_type="document") for text in TEXTS])
    scales = np.array(client.model(name).int8_scales(), np.float32)
    kinds = ("float32", "int8", "binary")
    return {kind: restored(queries, kind, scales) @ restored(documents, kind, scales).T for kind in kinds}


@pytest.mark.parametrize("name", ["embedder", "sparse", "tokens"])
def test_vectors_find_the_most_similar_documents(searcher, client, name):
    """Each kind of vectors orders all documents by their similarity, equal ones as in the corpus."""
    expected = similarities(client, name)

    searches = list(searcher.by_model(client.model(name)))

    assert [search.name for search in searches] == [f"{name}, {kind}" for kind in expected]
    for search, scores in zip(searches, expected.values(), strict=True):
        for ranking, row in zip(search.rankings, scores, strict=True):
            assert sorted(ranking) == np.flatnonzero(row > 0 if name == "sparse" else np.isfinite(row)).tolist()
            ordered = row[ranking]
            assert (np.diff(ordered) <= 1e-5).all()
        if search.name.endswith("binary"):
            assert search.rankings == np.argsort(-scores, axis=1, kind="stable").tolist()


def test_rows(searcher, client):
    """The table has each method once; fusions and rerankings come from the rankings of the first step."""
    models = choose_models(client, ["embedder", "scorer"])

    (table,) = measure(searcher, models, 5)

    rows = {row["method"]: row for row in table.rows}
    kinds = [f"embedder, {kind}" for kind in ("float32", "int8", "binary")]
    reranked = [f"{name}: first 5 by scorer" for name in ("BM25", "BM25 + embedder, float32")]
    assert list(rows) == ["BM25", *kinds, *(f"BM25 + {kind}" for kind in kinds), *reranked]
    words, vectors = searcher.by_words(), next(searcher.by_model(models[0]))
    rankings = [fused(both) for both in zip(words.rankings, vectors.rankings, strict=True)]
    (order,) = client.rerank([(QUERIES[0], [TEXTS[place] for place in rankings[0][:5]])], model="scorer")
    first = [rankings[0][place] for place in order.order]
    joined = searcher.fuse(words, vectors)
    assert joined.rankings == rankings
    assert searcher.rerank(models[1], joined, 5).rankings[0] == [*first, *rankings[0][5:]]
    for name, found in (("BM25", words), ("BM25 + embedder, float32", joined)):
        scores = [
            ranking_scores([f"d{place}" for place in ranking], grades)
            for ranking, grades in zip(found.rankings, GRADES.values(), strict=True)
        ]
        assert rows[name]["nDCG@10"] == pytest.approx(np.mean([score["nDCG@10"] for score in scores]))


def test_words_find_documents_with_a_word_only(searcher):
    """BM25 does not find documents without a word of the query, and reranking leaves empty rankings empty."""
    alone = replace(COLLECTION, queries={"q0": "cat", "q1": "zebra"}, copies=frozenset())
    words = replace(searcher, collection=alone).by_words()

    assert sorted(words.rankings[0]) == [place for place, text in enumerate(TEXTS) if "cat" in text.split()]
    assert words.rankings[1] == []
    reranked = replace(searcher, collection=alone).rerank(searcher.client.model("scorer"), words, 2)
    assert reranked.rankings[1] == []


def test_queries_do_not_find_themselves(searcher, client):
    """A query that is a document finds the others, by words and by vectors."""
    copies = Collection.of("toy", DOCUMENTS, {"d9": TEXTS[9]}, {"d9": {"d1": 1}})
    own = replace(searcher, collection=copies)

    searches = [own.by_words(), *own.by_model(client.model("embedder"))]

    assert all(search.rankings[0] and 9 not in search.rankings[0] for search in searches)


def test_models_must_search(client):
    """A model that neither makes vectors nor reranks is refused by name."""
    with pytest.raises(ValueError, match="`tagger` of task `tagging` makes no vectors and does not rerank"):
        choose_models(client, ["embedder", "tagger"])


def write_collection(folder, split):
    """Write the collection in BEIR's layout."""
    (folder / "qrels").mkdir()
    rows = {"corpus.jsonl.xz": DOCUMENTS, "queries.jsonl.xz": COLLECTION.queries}
    for name, texts in rows.items():
        lines = (json.dumps({"_id": key, "text": text}) + "\n" for key, text in texts.items())
        (folder / name).write_bytes(lzma.compress("".join(lines).encode()))
    judged = "".join(f"{query}\t{key}\t{grade}\n" for query, row in GRADES.items() for key, grade in row.items())
    (folder / f"qrels/{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}", "utf-8")


def test_command(tmp_path, monkeypatch, capfd):
    """The command serves a folder of models, prints the table and writes it, with cores of server and client."""
    write_model(tmp_path / "models")
    write_collection(tmp_path, "dev")
    words = f"{tmp_path} --split dev --names tiny --models {tmp_path / 'models'} --out {tmp_path / 'found'}"

    ended = call(benchmarks.retrieval_scores.main, words.split(), monkeypatch, capfd)

    assert ended.returncode == 0, ended.stderr
    (table,) = json.loads((tmp_path / "found.json").read_text("utf-8"))["parts"][tmp_path.name]["tables"]
    assert [row["method"] for row in table["rows"]] == [
        *("BM25", "tiny, float32", "tiny, binary", "BM25 + tiny, float32", "BM25 + tiny, binary")
    ]
    assert all(row["cores"] >= 0 for row in table["rows"])
    assert "| BM25 + tiny, binary" in ended.stdout


def test_best_effort(tmp_path, monkeypatch, capfd):
    """Rankings within deadlines are measured on an idle server and beside bulk work; with time, all are scored."""
    write_model(tmp_path / "models", "embedder", task="embedding")
    write_model(tmp_path / "models", "scorer", task="regression")
    write_collection(tmp_path, "test")
    words = f"{tmp_path} --models {tmp_path / 'models'} --model scorer --candidates 1000 --queries 2 --deadlines-s 2"

    ended = call(benchmarks.best_effort.main, f"{words} --out {tmp_path / 'found'}".split(), monkeypatch, capfd)

    assert ended.returncode == 0, ended.stderr
    parts = json.loads((tmp_path / "found.json").read_text("utf-8"))["parts"]
    assert list(parts) == ["idle", "beside bulk"]
    for part in parts.values():
        ((row,),) = (table["rows"] for table in part["tables"])
        assert (row["scored"], row["errors"], row["in tolerance"]) == (len(DOCUMENTS), 0, 1)
        assert row["nDCG@10"] > 0
