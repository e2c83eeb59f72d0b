"""The served answers equal the evaluated answers, example by example.

The test uses real checkpoints, real exports, a server in its own process, and the client that applications use.
"""

import re
import subprocess
import sys

import numpy as np
import pytest

from bertline import Client
from export import ExportConfig, export_checkpoint
from tasks.batching import predict
from tasks.embedding import Embedding, EmbeddingSettings
from tasks.text.tokenizer import Tokenizer
from tests.toy import make_text, write_classification, write_multi_label, write_spans
from training.checkpoint.evaluation import load_for_evaluation, torch_run
from training.checkpoint.reader import load_model
from training.data.columns import Columns
from training.data.squad import read_spans
from training.data.table_examples import read_classification
from training.finetuning.recipe import FinetuneRecipe
from training.finetuning.run import finetune

SHORT = {"learning_rate": 3e-3, "global_batch_size": 16, "micro_batch_size": 16, "dtype": "fp32", "dropout": 0.0}


UNTUNED = ExportConfig(tune=False)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Write dev sets with contexts of several windows and some unanswerable questions."""
    folder = tmp_path_factory.mktemp("data")
    return {
        "classify": write_classification(folder / "classify.jsonl", 150, seed=0),
        "label": write_multi_label(folder / "label.jsonl", 150, seed=0),
        "answer": write_spans(folder / "answer.json", 150, seed=0, unanswerable=True),
    }


@pytest.fixture(scope="module")
def checkpoints(checkpoint, data, tmp_path_factory, alone):
    runs = tmp_path_factory.mktemp("runs")
    windows = {"max_seq_length": 32, "max_query_length": 8, "doc_stride": 9}
    recipes = {
        "classify": FinetuneRecipe(
            task="classification", checkpoint=checkpoint, train=(data["classify"],), run_dir=runs / "classify", **SHORT
        ),
        "label": FinetuneRecipe(
            task="classification",
            checkpoint=checkpoint,
            train=(data["label"],),
            dev=(data["label"],),
            run_dir=runs / "label",
            num_epochs=2,
            **SHORT,
        ),
        "answer": FinetuneRecipe(
            task="spans", checkpoint=checkpoint, train=(data["answer"],), run_dir=runs / "answer", **windows, **SHORT
        ),
    }
    return {"embed": checkpoint, **{name: finetune(recipe, alone) for name, recipe in recipes.items()}}


@pytest.fixture(scope="module")
def client(checkpoints, tmp_path_factory):
    """Yield a client of a server with fp32 graphs of all checkpoints; embeddings also with mean pooling."""
    models = tmp_path_factory.mktemp("models")
    for name, path in checkpoints.items():
        export_checkpoint(path, models / name / "1", UNTUNED, task="embedding" if name == "embed" else None)
    mean = {"pooling": "mean", "normalize": True}
    export_checkpoint(checkpoints["embed"], models / "embed-mean" / "1", UNTUNED, task="embedding", settings=mean)
    command = [sys.executable, "-m", "serving", str(models), "--port", "0", "--metrics-port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        target = re.search(r" on (\S+:\d+)", server.stdout.readline())[1]
        with Client(target, batch_size=7) as connected:
            yield connected
    finally:
        server.terminate()
        code = server.wait(timeout=30)
        server.stdout.close()
    assert code == 0


def test_served_labels_are_the_evaluated_ones(client, checkpoints, data):
    """Served labels equal the evaluated labels, and scores agree to 1e-5."""
    task, run = load_for_evaluation(checkpoints["classify"])
    examples = read_classification(data["classify"], Columns())
    evaluated = predict(task, examples, run)

    served = client.classify([example.text for example in examples], model="classify")

    assert len({prediction.label for prediction in evaluated}) == 2
    assert [result.label for result in served] == [prediction.label for prediction in evaluated]
    for result, prediction in zip(served, evaluated, strict=True):
        scores = dict(prediction.ranked())
        for item in result.labels:
            assert item.score == pytest.approx(scores[item.label], abs=1e-5)


def test_served_sets_of_labels_are_the_evaluated_ones(client, checkpoints, data):
    """Served labels are those that reach the thresholds chosen on dev; scores agree to 1e-5."""
    task, run = load_for_evaluation(checkpoints["label"])
    examples = read_classification(data["label"], Columns())
    evaluated = predict(task, examples, run)

    served = client.classify([example.text for example in examples], model="label")

    assert len(task.settings.thresholds) == 3
    assert len({prediction.selected for prediction in evaluated}) > 2
    for result, prediction in zip(served, evaluated, strict=True):
        assert result.multi_label
        assert {item.label: item.score for item in result.labels} == pytest.approx(dict(prediction.ranked()), abs=1e-5)
        near = np.abs(prediction.scores - task.settings.label_thresholds) < 1e-5  # rounding decides there
        if not near.any():
            assert result.selected == prediction.selected


def test_served_answers_are_the_evaluated_ones(client, checkpoints, data):
    """Served answers have the evaluated text and offsets, for contexts of one window and of several."""
    task, run = load_for_evaluation(checkpoints["answer"])
    examples = read_spans(data["answer"])
    evaluated = predict(task, examples, run)

    served = client.answer([(example.question, example.context) for example in examples], model="answer", top_k=1)

    assert len({prediction.has_answer for prediction in evaluated}) == 2
    assert len({len(windows) for windows in task.encode(examples)}) > 1
    for example, result, prediction in zip(examples, served, evaluated, strict=True):
        span, expected = result.spans[0], prediction.spans[0]
        assert (result.text, result.has_answer) == (prediction.text, prediction.has_answer)
        assert (span.start, span.end) == (expected.start, expected.end)
        assert example.context[span.start : span.end] == span.text
        assert span.score == pytest.approx(expected.score, abs=1e-5)
        assert result.no_answer_score == pytest.approx(prediction.no_answer_score, abs=1e-5)


@pytest.mark.parametrize(("name", "pooling", "normalize"), [("embed", "cls", False), ("embed-mean", "mean", True)])
def test_served_embeddings_are_the_evaluated_ones(client, checkpoints, name, pooling, normalize):
    """Served vectors agree with the evaluated vectors to 1e-4, for texts of all lengths, truncated ones included."""
    model = next(item for item in client.models() if item.name == name)
    task = _embedding_task(checkpoints["embed"], model.max_seq_length).with_settings(
        pooling=pooling, normalize=normalize
    )
    texts = [sentence for sentence in make_text(20, seed=5).splitlines() if sentence] + [make_text(3, seed=6)]
    evaluated = np.stack(predict(task, texts, torch_run(load_model(checkpoints["embed"], "embedding"), task)))

    served = client.embed(texts, model=name, truncate=True)

    assert served.shape == (len(texts), 32)
    np.testing.assert_allclose(served, evaluated, atol=1e-4)


def _embedding_task(checkpoint, max_seq_length):

    return Embedding(Tokenizer.load(checkpoint), EmbeddingSettings(max_seq_length=max_seq_length))
