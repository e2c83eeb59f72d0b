"""BertlineEncoder in MTEB, on small made-up tasks without downloads."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.retrieval_scores import Searcher
from recipes.retrieval import read_mteb
from tests.clients.integrations.benchmark import OTHERS, TEXTS

pytestmark = pytest.mark.slow  # importing mteb takes seconds


def make_encoder(client, **arguments):
    from bertline.integrations.mteb import BertlineEncoder

    return BertlineEncoder(client, model="plain", **arguments)


def evaluate(mteb, model, task, **arguments):
    """Return the scores of a task."""
    result = mteb.evaluate(model, task, cache=None, co2_tracker=False, show_progress_bar=False, **arguments)
    return result.task_results[0].scores["test"][0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning:mteb")  # which it raises and calls for itself
def test_the_library_scores_its_own_model_alike(mteb, sts, retrieval, served, served_client):
    """MTEB gives the served model and its SentenceTransformer the same scores."""
    for task, options in ((sts, {}), (retrieval, {"batch_size": 2, "show_progress_bar": True})):
        models = make_encoder(served_client), served.plain
        ours, theirs = (evaluate(mteb, model, task, encode_kwargs=options) for model in models)
        numbers = {name: value for name, value in theirs.items() if isinstance(value, float)}

        assert {name: ours[name] for name in numbers} == pytest.approx(numbers, abs=1e-5, nan_ok=True)


def test_prompts_by_the_librarys_names(mteb, retrieval, served, served_client):
    """A retrieval task puts the prompts `query` and `document` before its texts."""
    prompts = {"query": "near the old tree: ", "document": "the river "}
    with_prompts = make_encoder(served_client, prompts=prompts)

    scores = evaluate(mteb, with_prompts, retrieval)

    queries = served.plain.encode(OTHERS, prompt=prompts["query"], normalize_embeddings=True)
    corpus = served.plain.encode(TEXTS, prompt=prompts["document"], normalize_embeddings=True)
    cosines = queries @ corpus.T
    ranks = (cosines > np.diag(cosines)[:, None]).sum(axis=1)

    assert scores["ndcg_at_10"] == pytest.approx(np.mean(1 / np.log2(ranks + 2)), abs=1e-4)
    assert with_prompts.mteb_model_meta.use_instructions


def test_retrieval_scores_are_those_of_the_library(mteb, retrieval, served_client, monkeypatch):
    """A task of MTEB in the project's own benchmark has the scores that MTEB gives it."""
    monkeypatch.setattr(mteb, "get_task", lambda name: retrieval)
    (collection,) = read_mteb("OwlRetrieval")
    search = next(Searcher(served_client, collection, "").by_model(served_client.model("plain")))

    expected = evaluate(mteb, make_encoder(served_client), retrieval)

    row = search.row(collection)
    names = {"nDCG@10": "ndcg_at_10", "recall@100": "recall_at_100", "MRR@10": "mrr_at_10"}
    ours, theirs = [row[name] for name in names], [100 * expected[name] for name in names.values()]
    assert ours == pytest.approx(theirs, abs=0.01)


def test_metadata(mteb, served_client):
    """The model's metadata combine the server's facts with the given fields."""
    given = {"name": "owls/plain", "languages": ["eng-Latn"], "license": "apache-2.0", "training_datasets": {"NQ"}}
    (model,) = [item for item in served_client.models() if item.name == "plain"]

    known = make_encoder(served_client).mteb_model_meta
    meta = make_encoder(served_client, truncate_dim=8, metadata=given).mteb_model_meta

    assert (known.name, known.embed_dim, known.max_tokens) == ("bertline/plain", 32, model.max_seq_length)
    assert known.revision == f"1-{model.digest[:12]}"
    assert known.framework == ["ONNX"]
    assert known.experiment_kwargs is None
    assert {name: getattr(meta, name) for name in given} == given
    assert (meta.embed_dim, meta.experiment_kwargs) == (8, {"truncate_dim": 8})


def test_unsupported_arguments_are_refused(mteb, sts, served_client):
    """An unsupported argument of `encode` fails the evaluation instead of changing it silently."""
    with pytest.raises(ValueError, match="`precision` cannot be `int8`"):
        evaluate(mteb, make_encoder(served_client), sts, encode_kwargs={"precision": "int8"})


def test_results_are_cached(mteb, sts, served_client, tmp_path):
    """MTEB's cache stores and finds results by the model's name and revision."""
    cache = mteb.ResultCache(tmp_path)
    encoder = make_encoder(served_client)

    first, again = (
        mteb.evaluate(
            encoder, sts, cache=cache, overwrite_strategy=strategy, co2_tracker=False, show_progress_bar=False
        )
        for strategy in ("always", "only-cache")
    )

    scores = first.task_results[0].get_score()
    assert scores == pytest.approx(again.task_results[0].get_score(), abs=1e-5)
    assert list(tmp_path.rglob(f"bertline__plain/{encoder.mteb_model_meta.revision}*/OwlSTS.json"))
