"""SPLADE models: folders of sentence-transformers' SparseEncoder, and masked LMs, give the library's weights."""

import json

import numpy as np
import pytest
import scipy.stats
import torch
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.models import MLMTransformer, SpladePooling

from export import graph_run
from export.evaluation_set import ExportData
from export.graph import build_graph
from export.quality_gate import QualityError
from export.source import read_source
from export.variant import GraphPrecision, GraphVariant
from tasks.batching import predict
from tests.export.conftest import LABELS, PAIRS, changed, int8, random_texts, read_network, write_pairs
from tests.families import CONFIGS, batch, create, reference_outputs
from training.evaluate import main as evaluate

TEXTS = ["the cat", "a", "going home, the bakery closed.", "x y z " * 4]


@pytest.fixture
def folder(tmp_path, save_checkpoint):
    """Save a SparseEncoder."""

    def save(pooling="max", activation="relu", **config):
        checkpoint = save_checkpoint(tmp_path / "masked-lm", "BertForMaskedLM")
        modules = [MLMTransformer(str(checkpoint), max_seq_length=24), SpladePooling(pooling, activation)]
        SparseEncoder(modules=modules, device="cpu", **config).save(str(tmp_path / "splade"))
        return tmp_path / "splade"

    return save


def library_weights(folder, texts=TEXTS, **options):
    """Return the vectors of the library, [texts, vocabulary]."""
    return SparseEncoder(str(folder), device="cpu").encode(texts, convert_to_sparse_tensor=False, **options).numpy()


def served_weights(directory, texts=TEXTS, **options):
    """Return the vectors of an exported graph, [texts, vocabulary]."""
    task = directory.load_task()
    run = graph_run(directory.path / "model.onnx", execution=directory.manifest.execution)
    dense = np.zeros((len(texts), directory.manifest.vocab_size), np.float32)
    for row, vector in zip(dense, predict(task, texts, run), strict=True):
        row[vector.indices] = vector.values
    return dense


@pytest.mark.parametrize("pooling", ["max", "sum"])
@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
def test_weights_are_those_of_the_library(folder, export, pooling, activation):
    """The exported graph gives the vectors of SparseEncoder, also for texts of different lengths in a batch."""
    checkpoint = folder(pooling, activation)

    directory = export(checkpoint)

    settings = directory.manifest.settings
    assert (directory.manifest.task, settings.pooling, settings.activation) == ("sparse-embedding", pooling, activation)
    assert settings.max_seq_length == 24
    expected = library_weights(checkpoint)
    assert (expected > 0).mean() > 0.2
    np.testing.assert_allclose(served_weights(directory), expected, atol=1e-4)


def test_masked_lm(checkpoints, export):
    """A masked LM without such modules is exported with --task, pooling by the maximum."""
    directory = export("masked-lm", task="sparse-embedding", settings={"top_k": 7})

    modules = [MLMTransformer(str(checkpoints["masked-lm"])), SpladePooling("max")]
    encoder = SparseEncoder(modules=modules, device="cpu")
    expected = encoder.encode(TEXTS, convert_to_sparse_tensor=False).numpy()
    seventh = np.sort(expected)[:, -7, None]
    np.testing.assert_allclose(served_weights(directory), np.where(expected >= seventh, expected, 0), atol=1e-4)


def test_prompts(folder, export):
    """Prompts of the folder become those of the model."""
    checkpoint = folder(prompts={"query": "the ", "document": ""}, default_prompt_name="query")

    directory = export(checkpoint)

    np.testing.assert_allclose(served_weights(directory), library_weights(checkpoint), atol=1e-4)
    np.testing.assert_allclose(served_weights(directory), library_weights(checkpoint, prompt="the "), atol=1e-4)


def library_similarities(folder, pairs, **options):
    """Return the similarity of each pair by the library: the dot product of its vectors."""
    encoder = SparseEncoder(str(folder), device="cpu")
    first, second = (encoder.encode(list(texts), **options) for texts in zip(*pairs, strict=True))
    return encoder.similarity_pairwise(first, second).numpy()


@pytest.mark.parametrize("options", [{}, {"prompts": {"ask": "the "}, "default_prompt_name": "ask"}])
def test_scores(options, folder, export, tmp_path, monkeypatch, capsys):
    """The export and training.evaluate score the library's dot products of pairs against their labels."""
    checkpoint, dev = folder(**options), write_pairs(tmp_path / "dev.tsv", PAIRS, LABELS)

    directory = export(checkpoint, data=ExportData(dev=(dev,)))

    found = library_similarities(checkpoint, PAIRS)
    expected = {
        "spearman": scipy.stats.spearmanr(LABELS, found).statistic,
        "pearson": scipy.stats.pearsonr(LABELS, found).statistic,
    }
    scores = directory.manifest.scores
    assert scores["evaluated_on"] == "40 pairs of dev.tsv"
    assert all(item["scores"] == pytest.approx(expected, abs=1e-4) for item in scores["quality"].values())
    assert list(scores["quality"]["PyTorch"]["scores"]) == ["spearman", "pearson"]
    assert "| spearman" in (directory.path / "README.md").read_text()
    monkeypatch.setattr("sys.argv", ["evaluate", str(checkpoint), "--data", str(dev)])
    evaluate()
    assert f" {100 * expected['spearman']:.2f} " in capsys.readouterr().out


def test_scores_are_those_of_pruned_vectors(export, tmp_path):
    """Vectors are scored with the weights that the server returns: the largest ones, of cut texts."""
    pairs = [(f"{first} " * 9, second) for first, second in PAIRS]
    dev = write_pairs(tmp_path / "dev.tsv", pairs, LABELS)
    settings = {"top_k": 7, "max_seq_length": 16}

    directory = export("masked-lm", task="sparse-embedding", settings=settings, data=ExportData(dev=(dev,)))

    first, second = (served_weights(directory, texts) for texts in zip(*pairs, strict=True))
    assert (first > 0).sum(axis=1).max() == 7
    expected = scipy.stats.spearmanr(LABELS, (first * second).sum(axis=1)).statistic
    assert directory.manifest.scores["quality"]["fp32"]["scores"]["spearman"] == pytest.approx(expected, abs=1e-4)
    assert directory.manifest.truncate


def test_the_quality_gate_judges_scores(folder, export, tmp_path):
    """int8 is calibrated on --train, and rejected if Spearman's correlation drops by more than the limit."""
    checkpoint = folder()
    dev = write_pairs(tmp_path / "dev.tsv", PAIRS, library_similarities(checkpoint, PAIRS).tolist())
    (tmp_path / "train.txt").write_text("\n".join(random_texts(40, seed=4)))
    data = ExportData(dev=(dev,), train=(tmp_path / "train.txt",))

    quality = export(checkpoint, int8(max_drop=100, min_cosine=0), data=data).manifest.scores["quality"]

    assert quality["static int8"]["scores"]["spearman"] < quality["PyTorch"]["scores"]["spearman"] == pytest.approx(1)
    with pytest.raises(QualityError, match="spearman drops by"):
        export(checkpoint, int8(max_drop=1e-4, min_cosine=0), to="m/2", data=data)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["a\tb\t1", "c\td\t1"], "dev.tsv: every label is `1.0`, so correlations are undefined"),
        (["a\tb\t1", "c\t\t2"], "line 3.*text_pair"),
    ],
)
@pytest.mark.parametrize("task", ["sparse-embedding", "token-embedding"])
def test_odd_data_are_refused(task, rows, message, export, tmp_path):
    """Labels without spread and texts without words are errors of one line."""
    (tmp_path / "dev.tsv").write_text("\n".join(["text\ttext_pair\tlabel", *rows, ""]))
    data = ExportData(dev=(tmp_path / "dev.tsv",))

    with pytest.raises(ValueError, match=message) as refused:
        export(task, task=task, data=data)

    assert "\n" not in str(refused.value)


def test_new_layout(folder):
    """The layout of version 6, whose Transformer names its task, is read."""
    checkpoint = folder()
    path = checkpoint / "modules.json"
    modules = json.loads(path.read_text())
    modules[0]["type"] = "sentence_transformers.base.modules.transformer.Transformer"
    path.write_text(json.dumps(modules))
    path = checkpoint / "sentence_bert_config.json"
    values = {
        "transformer_task": "fill-mask",
        "module_output_name": "token_embeddings",
        "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
    }
    path.write_text(json.dumps(json.loads(path.read_text()) | values))

    assert read_source(checkpoint).task.name == "sparse-embedding"


@pytest.mark.parametrize(
    ("path", "changes", "message"),
    [
        (
            "1_SpladePooling/config.json",
            {"pooling_strategy": "mean"},
            "unsupported pooling_strategy `mean` in .*max, sum",
        ),
        ("sentence_bert_config.json", {"transformer_task": "feature-extraction"}, "unsupported transformer_task"),
    ],
)
def test_unknown_values_are_refused(folder, path, changes, message):
    """A value that changes weights and is not known is an error."""
    checkpoint = folder()
    changed(path, **changes)(checkpoint)

    with pytest.raises(ValueError, match=message):
        read_source(checkpoint)


def library_pooling(logits, mask, pooling):
    """Return the weights of the library for logits of transformers."""
    features = {"token_embeddings": logits.clone(), "attention_mask": mask}
    return SpladePooling(pooling).eval()(features)["sentence_embedding"]


@pytest.mark.parametrize("number", range(len(CONFIGS)), ids=sorted(CONFIGS))
def test_graphs_of_all_families(number, tmp_path):
    """Every family gives the weights of the library over transformers' logits, in fp32, and nearly so in fp16."""
    kind, pooling = sorted(CONFIGS)[number], ("max", "sum")[number % 2]
    reference = create(kind, "masked-lm", tmp_path)
    _, network = read_network(tmp_path, "sparse-embedding", pooling=pooling)
    for precision, atol in ((GraphPrecision(), 1e-4), (GraphPrecision(matmul="fp16"), 0.05)):
        run = graph_run(build_graph(network, precision, GraphVariant()))
        for rows, length in ((1, 1), (5, 40)):
            ids, mask, types = batch(kind, rows, length)
            logits = reference_outputs(reference, "masked-lm", ids, mask, types)["logits"]
            expected = library_pooling(logits, mask, pooling)
            arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
            arrays = {name: value.numpy().astype(np.int32) for name, value in arrays.items()}
            found = torch.from_numpy(run(arrays)["sparse_embedding"])
            torch.testing.assert_close(found, expected, atol=atol * (length if pooling == "sum" else 1), rtol=1e-3)
