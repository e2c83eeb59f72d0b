"""SPLADE models: folders of sentence-transformers' SparseEncoder, and masked LMs, give the library's weights."""

import json

import numpy as np
import pytest
import torch
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.models import MLMTransformer, SpladePooling

from export import ExportConfig, export_checkpoint, ort_run
from export.graph import build_graph
from export.network import Network, Weights
from export.source import read_source
from export.variant import GraphPrecision, GraphVariant
from tasks.batching import predict
from tests.export.conftest import UNTUNED
from tests.families import CONFIGS, batch, create, reference_outputs

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
    run = ort_run(directory.path / "model.onnx", execution=directory.manifest.execution)
    dense = np.zeros((len(texts), directory.manifest.vocab_size), np.float32)
    for row, vector in zip(dense, predict(task, texts, run), strict=True):
        row[vector.indices] = vector.values
    return dense


@pytest.mark.parametrize("pooling", ["max", "sum"])
@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
def test_weights_are_those_of_the_library(folder, tmp_path, pooling, activation):
    """The exported graph gives the vectors of SparseEncoder, also for texts of different lengths in a batch."""
    checkpoint = folder(pooling, activation)

    directory = export_checkpoint(checkpoint, tmp_path / "models/splade/1", UNTUNED)

    settings = directory.manifest.settings
    assert (directory.manifest.task, settings.pooling, settings.activation) == ("sparse-embedding", pooling, activation)
    assert settings.max_seq_length == 24
    expected = library_weights(checkpoint)
    assert (expected > 0).mean() > 0.2
    np.testing.assert_allclose(served_weights(directory), expected, atol=1e-4)


def test_masked_lm(tmp_path, checkpoints):
    """A masked LM without such modules is exported with --task, pooling by the maximum."""
    checkpoint = checkpoints["masked-lm"]

    directory = export_checkpoint(
        checkpoint, tmp_path / "models/splade/1", UNTUNED, task="sparse-embedding", settings={"top_k": 7}
    )

    encoder = SparseEncoder(modules=[MLMTransformer(str(checkpoint)), SpladePooling("max")], device="cpu")
    expected = encoder.encode(TEXTS, convert_to_sparse_tensor=False).numpy()
    seventh = np.sort(expected)[:, -7, None]
    np.testing.assert_allclose(served_weights(directory), np.where(expected >= seventh, expected, 0), atol=1e-4)


def test_int8(tmp_path, checkpoints):
    """int8 stays within the limits of vectors; the output layer is quantised, too."""
    config = ExportConfig(precision="int8", tune=False)

    directory = export_checkpoint(
        checkpoints["masked-lm"], tmp_path / "models/splade/1", config, task="sparse-embedding"
    )

    quality = directory.manifest.scores["quality"]
    assert all(item["mean_cosine"] >= 0.99 for item in quality.values())


def test_prompts(folder, tmp_path):
    """Prompts of the folder become those of the model."""
    checkpoint = folder(prompts={"query": "the ", "document": ""}, default_prompt_name="query")

    directory = export_checkpoint(checkpoint, tmp_path / "models/splade/1", UNTUNED)

    np.testing.assert_allclose(served_weights(directory), library_weights(checkpoint), atol=1e-4)
    np.testing.assert_allclose(served_weights(directory), library_weights(checkpoint, prompt="the "), atol=1e-4)


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
        ("1_SpladePooling/config.json", {"activation_function": "tanh"}, "unsupported activation_function `tanh`"),
        ("1_SpladePooling/config.json", {"other": 1}, "unsupported key in .*`other`"),
        ("config_sentence_transformers.json", {"model_type": "CrossEncoder"}, "unsupported model_type `CrossEncoder`"),
        ("sentence_bert_config.json", {"transformer_task": "feature-extraction"}, "unsupported transformer_task"),
    ],
)
def test_unknown_values_are_refused(folder, path, changes, message):
    """A value that changes weights and is not known is an error."""
    checkpoint = folder()
    file = checkpoint / path
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    with pytest.raises(ValueError, match=message):
        read_source(checkpoint)


def test_further_modules_are_refused(folder):
    """A module after SpladePooling is an error."""
    checkpoint = folder()
    path = checkpoint / "modules.json"
    more = {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
    path.write_text(json.dumps([*json.loads(path.read_text()), more]))

    with pytest.raises(ValueError, match=r"unsupported module in .*`Normalize`; expected `SpladePooling` alone"):
        read_source(checkpoint)


def test_an_encoder_without_a_masked_lm(checkpoints, tmp_path):
    """An encoder whose checkpoint lacks the output layer cannot do it."""
    with pytest.raises(ValueError, match=r"it lacks `cls\.predictions"):
        export_checkpoint(checkpoints["plain"], tmp_path / "models/splade/1", UNTUNED, task="sparse-embedding")


def library_pooling(logits, mask, pooling):
    """Return the weights of the library for logits of transformers."""
    features = {"token_embeddings": logits.clone(), "attention_mask": mask}
    return SpladePooling(pooling).eval()(features)["sentence_embedding"]


@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_graphs_of_all_families(kind, tmp_path):
    """Every family gives the weights of the library over transformers' logits, in fp32, and nearly so in fp16."""
    reference = create(kind, "masked-lm", tmp_path)
    for pooling in ("max", "sum"):
        source = read_source(tmp_path, task="sparse-embedding", settings={"pooling": pooling})
        model = source.load_model().eval()
        network = Network(model.config, Weights.from_model(model), source.task)
        for precision, atol in ((GraphPrecision(), 1e-4), (GraphPrecision(matmul="fp16"), 0.05)):
            run = ort_run(build_graph(network, precision, GraphVariant()))
            for rows, length in ((1, 1), (2, 20), (5, 40)):
                ids, mask, types = batch(kind, rows, length)
                expected = library_pooling(
                    reference_outputs(reference, "masked-lm", ids, mask, types)["logits"], mask, pooling
                )
                arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
                arrays = {name: value.numpy().astype(np.int32) for name, value in arrays.items()}
                found = torch.from_numpy(run(arrays)["sparse_embedding"])
                torch.testing.assert_close(found, expected, atol=atol * (length if pooling == "sum" else 1), rtol=1e-3)
