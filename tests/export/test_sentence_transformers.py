"""sentence-transformers folders of all layouts: poolings, Dense and Normalize give the vectors of the library."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from export import graph_run
from export.autotune.model_directory import read_graph
from export.graph import build_graph
from export.interop import INTEROP_FILES
from export.network import Weights
from export.source import read_source
from export.variant import GraphPrecision, GraphVariant
from tasks.batching import predict
from tasks.bundle.manifest import Manifest
from tests.export.conftest import FLAGS, NEW, OLD, TANH, TEXTS, read_network, write_json
from training.checkpoint.evaluation import torch_run

LINEAR = "torch.nn.modules.linear.Identity"
FUNCTIONS = {
    TANH: torch.tanh,
    LINEAR: lambda x: x,
    "torch.nn.modules.activation.GELU": torch.nn.functional.gelu,
    "torch.nn.modules.activation.ReLU": torch.relu,
    "torch.nn.modules.activation.SiLU": torch.nn.functional.silu,
    "torch.nn.modules.activation.Sigmoid": torch.sigmoid,
}
NORMALIZE = ("Normalize", {})


def dense(size, activation=TANH, **more):
    """Return a Dense module with its config."""
    return "Dense", {"out_features": size, "bias": True, "activation_function": activation, **more}


def reference(directory, poolings, modules, texts):
    """Return vectors by the formulas, one text at a time without padding."""
    network = transformers.BertModel.from_pretrained(directory).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    vectors = []
    for text in texts:
        inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=24)
        with torch.no_grad():
            hidden = network(**inputs).last_hidden_state[0]
        x = torch.cat([formula(hidden, pooling) for pooling in poolings])
        for index, (kind, config) in enumerate(modules, 2):
            if kind == "Dense":
                path = directory / f"{index}_Dense"
                pickled = path / "pytorch_model.bin"
                weights = torch.load(pickled) if pickled.is_file() else load_file(path / "model.safetensors")
                y = weights["linear.weight"] @ x + weights.get("linear.bias", 0)
                x = FUNCTIONS[config["activation_function"]](y)
            else:
                x = x / x.norm()
        vectors.append(x.numpy())
    return np.stack(vectors)


def formula(hidden, pooling):
    """Return the pooled states [length, hidden] of one text."""
    length = len(hidden)
    positions = torch.arange(1, length + 1)[:, None]
    return {
        "cls": lambda: hidden[0],
        "lasttoken": lambda: hidden[-1],
        "max": lambda: hidden.max(0).values,
        "mean": lambda: hidden.mean(0),
        "mean_sqrt_len_tokens": lambda: hidden.sum(0) / length**0.5,
        "weightedmean": lambda: (hidden * positions).sum(0) / positions.sum(),
    }[pooling]()


def check_vectors(directory, expected):
    """Compare the network and graphs of several variants, in padded batches."""
    model, network = read_network(directory)
    runs = [torch_run(model, network.task)]
    for variant in (GraphVariant(), GraphVariant(standard=True)):
        runs.append(graph_run(build_graph(network, GraphPrecision(), variant)))
    for run in runs:
        found = np.stack(predict(network.task, TEXTS, run))
        np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-4)


SEVERAL = [("cls", "mean"), ("max", "weightedmean", "lasttoken")]
REVERSED = ("mean", "cls")
"""Several poolings in an order that only new layouts can state."""


@pytest.mark.parametrize(
    ("poolings", "new"),
    [
        *((poolings, False) for poolings in [*((name,) for name in FLAGS), *SEVERAL]),
        *((poolings, True) for poolings in [("mean",), *SEVERAL, REVERSED]),
    ],
)
def test_poolings(folder, poolings, new):
    """Each pooling, and several in one vector, gives its formula; padding changes nothing."""
    directory = folder(poolings, new=new)

    check_vectors(directory, reference(directory, poolings, (), TEXTS))


MODULES = {
    "one": [dense(16)],
    "several": [dense(48, LINEAR, bias=False), dense(8, "torch.nn.modules.activation.GELU")],
    "normalized before": [NORMALIZE, dense(8, "torch.nn.modules.activation.SiLU")],
    "normalized between": [dense(16, "torch.nn.modules.activation.Sigmoid"), NORMALIZE, dense(8, LINEAR), NORMALIZE],
}


@pytest.mark.parametrize(
    ("modules", "new", "pickled"),
    [
        *((modules, False, False) for modules in MODULES.values()),
        (MODULES["several"], False, True),
        (MODULES["several"], True, False),
    ],
)
def test_dense_modules(folder, modules, new, pickled):
    """Dense modules and Normalize, in any order and format, give their formulas."""
    directory = folder(("mean",), modules, new=new, pickled=pickled)

    check_vectors(directory, reference(directory, ("mean",), modules, TEXTS))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("poolings", [("mean",), *SEVERAL], ids="+".join)
def test_vectors_of_the_library(folder, poolings):
    """Vectors are those of sentence-transformers."""
    library = pytest.importorskip("sentence_transformers")
    directory = folder(poolings, MODULES["normalized between"])

    theirs = library.SentenceTransformer(str(directory), device="cpu", local_files_only=True)

    check_vectors(directory, theirs.encode(TEXTS))


@pytest.mark.filterwarnings("ignore")
def test_model_directories_know_the_size_of_their_vectors(folder, export):
    """The manifest has the size after Dense; tuning finds the same network; other libraries load the directory."""
    modules = [dense(12), NORMALIZE, dense(8, LINEAR, bias=False)]
    directory = folder(("mean", "cls"), modules, new=True, config={"similarity_fn_name": "dot"})
    expected = reference(directory, ("mean", "cls"), modules, TEXTS)

    model = export(directory)

    settings = model.manifest.settings
    assert model.manifest.hidden_size == 8
    assert (settings.layers, settings.normalize) == (("dense tanh", "normalize", "dense identity"), False)
    assert Manifest.from_json(model.manifest.to_json()) == model.manifest
    np.testing.assert_allclose(np.stack(predict(model.load_task(), TEXTS, graph_run(model.model_path))), expected, 1e-4)
    network, precision = read_graph(model)
    again = graph_run(build_graph(network, precision, GraphVariant()))
    np.testing.assert_allclose(np.stack(predict(network.task, TEXTS, again)), expected, 1e-4)
    assert "linear layer (tanh), of length 1, linear layer (identity)" in (model.path / "README.md").read_text()
    assert {str(path.relative_to(model.path)) for path in model.path.rglob("*.json")} <= {
        *(*INTEROP_FILES, "manifest.json", "tokenizer.json")
    }


FP16 = GraphPrecision(matmul="fp16")


@pytest.mark.parametrize("standard", [False, True])
@pytest.mark.parametrize("modules", [(), MODULES["normalized between"]], ids=["plain", "dense"])
def test_fp16_vectors(folder, modules, standard):
    """With fp16 layers, heads with all poolings stay close to the formulas."""
    directory = folder(tuple(FLAGS), modules)
    _, network = read_network(directory)
    run = graph_run(build_graph(network, FP16, GraphVariant(standard=standard)))

    found = np.stack(predict(network.task, TEXTS, run))

    np.testing.assert_allclose(found, reference(directory, tuple(FLAGS), modules, TEXTS), atol=1e-2)


@pytest.mark.parametrize("standard", [False, True])
def test_fp16_sums_do_not_overflow(tmp_path, save_checkpoint, standard):
    """Sums over 512 tokens, above the largest number of fp16, are computed in fp32."""
    checkpoint = save_checkpoint(tmp_path / "long", max_position_embeddings=512)
    model, network = read_network(checkpoint, pooling=tuple(FLAGS))
    with torch.no_grad():
        model.bert.layers[-1].output_norm.bias += 300
    network = replace(network, weights=Weights.from_model(model))
    run = graph_run(build_graph(network, FP16, GraphVariant(standard=standard)))
    ids = np.random.default_rng(0).integers(5, 60, (2, 512), dtype=np.int32)
    mask = (np.arange(512) < [[512], [300]]).astype(np.int32)
    arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}

    found = run(arrays)["sentence_embedding"]

    expected = torch_run(model, network.task)(arrays)["sentence_embedding"]
    assert np.abs(expected).max() * 512**0.5 > np.finfo(np.float16).max
    np.testing.assert_allclose(found, expected, rtol=2e-3)


def test_a_vector_of_zeros_is_not_divided_by_its_length(folder):
    """Normalize after ReLU leaves a vector of zeros, as the library does."""
    directory = folder(("mean",), [dense(8, "torch.nn.modules.activation.ReLU"), NORMALIZE])
    weights = {"linear.weight": torch.zeros(8, 32), "linear.bias": -torch.ones(8)}
    save_file(weights, directory / "2_Dense/model.safetensors")

    check_vectors(directory, np.zeros((4, 8)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("default", [None, "query"])
def test_prompts_of_the_library(folder, export, default):
    """Prompts and the default prompt of a folder give the library's vectors, after export and in other libraries."""
    library = pytest.importorskip("sentence_transformers")
    config = {"prompts": {"query": "the house ", "document": ""}, "default_prompt_name": default}
    directory = folder(config=config)
    model = export(directory)
    theirs = library.SentenceTransformer(str(directory), device="cpu", local_files_only=True)
    run = graph_run(model.model_path)

    for name in (None, "query", "document"):
        task = replace(model.load_task(), prompt_name=name)
        found, expected = np.stack(predict(task, TEXTS, run)), theirs.encode(TEXTS, prompt_name=name)
        np.testing.assert_allclose(found, expected, atol=1e-5)
    again = json.loads((model.path / "config_sentence_transformers.json").read_text())
    assert again == config | {"similarity_fn_name": None}


TRANSFORMER = {"path": "", "type": OLD["Transformer"]}
POOLING = {"path": "1_Pooling", "type": OLD["Pooling"]}
BROKEN = {
    "cut": ("2_Dense/model.safetensors", "\0" * 20, "cannot read weights `.*2_Dense/model.safetensors`"),
    "other size": (
        "2_Dense/config.json",
        {"in_features": 32, "out_features": 9},
        r"weights in `.*2_Dense` do not fit its `config\.json`: .* size mismatch for weight",
    ),
    "activation": (
        "2_Dense/config.json",
        {"activation_function": "mine.Swish"},
        "unsupported activation_function `mine.Swish`",
    ),
    "pooling": ("1_Pooling/config.json", {"pooling_mode": "median"}, "unsupported pooling in .*: `median`"),
    "prompt": ("1_Pooling/config.json", {"include_prompt": False}, "unsupported include_prompt `false`"),
    "half of the poolings": (  # versions differ in whether the mean is taken, too
        "1_Pooling/config.json",
        {"pooling_mode_cls_token": True},
        "unsupported pooling in .*: pooling_mode_mean_tokens is missing",
    ),
    "endless": ("sentence_bert_config.json", "[" * 100_000, r"broken JSON in .*sentence_bert_config\.json"),
    "prompt name": (
        "config_sentence_transformers.json",
        {"prompts": {"query": "the "}, "default_prompt_name": "passage"},
        "default_prompt_name `passage` is none of its prompts: query",
    ),
    "outside": (
        "modules.json",
        [TRANSFORMER, POOLING | {"path": "1_Pooling/../../other"}],
        r"modules\.json` names `.*`, which is outside its folder",
    ),
    "module": (
        "modules.json",
        [TRANSFORMER, POOLING, {"path": "2", "type": "sentence_transformers.models.LSTM"}],
        "unsupported module in .*: `LSTM`",
    ),
    "code": (
        "modules.json",
        [TRANSFORMER, POOLING, {"path": "2", "type": "custom_st.Dense"}],
        "`custom_st.Dense` is code of its own",
    ),
}


@pytest.mark.parametrize(("name", "content", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_folders_are_refused(folder, name, content, message):
    """Broken files, values that change vectors, code, and files outside the folder are errors that name the file."""
    directory = folder(("mean",), [dense(8)])
    (directory / name).write_text(content if isinstance(content, str) else json.dumps(content))

    with pytest.raises(ValueError, match=message):
        read_source(directory).load_model()


@pytest.fixture
def cross_encoder(tmp_path, save_checkpoint):
    """Write the folder of a CrossEncoder, in the layout of version 6."""
    directory = save_checkpoint(tmp_path / "ce", "BertForSequenceClassification", num_labels=1)
    write_json(directory / "modules.json", [{"path": "", "type": NEW["Transformer"]}])
    of_text = {"text": {"method": "forward", "method_output_name": "logits"}}
    values = {"transformer_task": "sequence-classification", "module_output_name": "scores", "max_seq_length": 20}
    write_json(directory / "sentence_bert_config.json", values | {"modality_config": of_text})
    config = {"model_type": "CrossEncoder", "prompts": {}, "activation_fn": LINEAR}
    write_json(directory / "config_sentence_transformers.json", config)
    return directory


def test_cross_encoders(cross_encoder):
    """The folder of a CrossEncoder gives its network and length."""
    source = read_source(cross_encoder)

    assert (source.task.name, source.task.settings.max_seq_length) == ("regression", 20)
    assert source.load_model().classifier.out_features == 1
