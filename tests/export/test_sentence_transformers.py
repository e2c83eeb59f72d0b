"""sentence-transformers folders of all layouts: poolings, Dense and Normalize give the vectors of the library."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from export import export_checkpoint, graph_run
from export.autotune.model_directory import read_graph
from export.graph import build_graph
from export.interop import INTEROP_FILES
from export.network import Network, Weights
from export.source import read_source
from export.variant import GraphPrecision, GraphVariant
from tasks.batching import predict
from tasks.bundle.manifest import Manifest
from tests.export.conftest import UNTUNED
from training.checkpoint.evaluation import torch_run

FLAGS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
"""Flag of each pooling in old layouts, in the order of the library."""
OLD = {kind: f"sentence_transformers.models.{kind}" for kind in ("Transformer", "Pooling", "Dense", "Normalize")}
NEW = {
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "Dense": "sentence_transformers.base.modules.dense.Dense",
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
}
TANH = "torch.nn.modules.activation.Tanh"
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
TEXTS = ["the cat", "a", "going home, the bakery [MASK] closed.", "x y z " * 4]


def dense(size, activation=TANH, **more):
    """Return a Dense module with its config."""
    return "Dense", {"out_features": size, "bias": True, "activation_function": activation, **more}


def write_json(path, values):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(values))


@pytest.fixture
def folder(tmp_path, save_checkpoint):
    """Write a folder of an old or a new layout, with random weights."""

    def write(poolings=("mean",), modules=(), *, new=False, pickled=False, config=None):
        directory = save_checkpoint(tmp_path / "st")
        types = NEW if new else OLD
        written = [("Transformer", {}), ("Pooling", pooling_config(poolings, new)), *modules]
        size, listed = 32 * len(poolings), []
        for index, (kind, values) in enumerate(written):
            path = "" if kind == "Transformer" else f"{index}_{kind}"
            listed.append({"idx": index, "name": str(index), "path": path, "type": types.get(kind, kind)})
            if kind == "Dense":
                values = {"in_features": size, **values}
                size = write_dense(directory / path, values, index, pickled)
            if path and (values or new):
                write_json(directory / path / "config.json", values)
        write_json(directory / "modules.json", listed)
        write_json(directory / "sentence_bert_config.json", length_config(new))
        write_json(directory / "config_sentence_transformers.json", config or {"prompts": {}})
        return directory

    return write


def pooling_config(poolings, new):
    if new:
        named = poolings[0] if len(poolings) == 1 else list(poolings)
        return {"embedding_dimension": 32, "pooling_mode": named, "include_prompt": True}
    return {"word_embedding_dimension": 32, **{flag: name in poolings for name, flag in FLAGS.items()}}


def length_config(new):
    text = {"method": "forward", "method_output_name": "last_hidden_state"}
    of_new = {
        "transformer_task": "feature-extraction",
        "modality_config": {"text": text},
        "module_output_name": "token_embeddings",
    }
    return {"max_seq_length": 24, "do_lower_case": False} | (of_new if new else {})


def write_dense(path, config, seed, pickled):
    torch.manual_seed(seed)
    weights = {"linear.weight": torch.randn(config["out_features"], config["in_features"]) / 4}
    if config["bias"]:
        weights["linear.bias"] = torch.randn(config["out_features"])
    path.mkdir()
    if pickled:
        torch.save(weights, path / "pytorch_model.bin")
    else:
        save_file(weights, path / "model.safetensors")
    return config["out_features"]


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
    source = read_source(directory)
    model = source.load_model()
    network = Network(model.config, Weights.from_model(model), source.task)
    runs = [torch_run(model, source.task)]
    for variant in (GraphVariant(), GraphVariant(standard=True)):
        runs.append(graph_run(build_graph(network, GraphPrecision(), variant)))
    for run in runs:
        found = np.stack(predict(source.task, TEXTS, run))
        np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-4)


SEVERAL = [("cls", "mean"), ("max", "weightedmean", "lasttoken")]
REVERSED = ("mean", "cls")
"""Several poolings in an order that only new layouts can state."""


@pytest.mark.parametrize(
    ("poolings", "new"),
    [
        *((poolings, new) for new in (False, True) for poolings in [*((name,) for name in FLAGS), *SEVERAL]),
        (REVERSED, True),
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


@pytest.mark.parametrize(("new", "pickled"), [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("modules", MODULES.values(), ids=MODULES)
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
def test_model_directories_know_the_size_of_their_vectors(folder, tmp_path):
    """The manifest has the size after Dense; tuning finds the same network; other libraries load the directory."""
    modules = [dense(12), NORMALIZE, dense(8, LINEAR, bias=False)]
    directory = folder(("mean", "cls"), modules, new=True, config={"similarity_fn_name": "dot"})
    expected = reference(directory, ("mean", "cls"), modules, TEXTS)

    model = export_checkpoint(directory, tmp_path / "vectors/1", UNTUNED)

    settings = model.manifest.settings
    assert model.manifest.hidden_size == 8
    assert (settings.layers, settings.normalize) == (("dense tanh", "normalize", "dense identity"), False)
    assert Manifest.from_json(model.manifest.to_json()) == model.manifest
    np.testing.assert_allclose(np.stack(predict(model.load_task(), TEXTS, graph_run(model.model_path))), expected, 1e-4)
    network, precision = read_graph(model)
    again = graph_run(build_graph(network, precision, GraphVariant()))
    np.testing.assert_allclose(np.stack(predict(network.task, TEXTS, again)), expected, 1e-4)
    assert "linear layer (tanh), of length 1, linear layer (identity)" in (model.path / "README.md").read_text()
    assert {str(path.relative_to(model.path)) for path in model.path.rglob("*.json")} <= {*INTEROP_FILES, *OURS}


OURS = {"manifest.json", "tokenizer.json"}


FP16 = GraphPrecision(matmul="fp16")


@pytest.mark.parametrize("standard", [False, True])
@pytest.mark.parametrize("modules", [(), MODULES["normalized between"]], ids=["plain", "dense"])
def test_fp16_vectors(folder, modules, standard):
    """With fp16 layers, heads with all poolings stay close to the formulas."""
    directory = folder(tuple(FLAGS), modules)
    source = read_source(directory)
    model = source.load_model()
    network = Network(model.config, Weights.from_model(model), source.task)
    run = graph_run(build_graph(network, FP16, GraphVariant(standard=standard)))

    found = np.stack(predict(source.task, TEXTS, run))

    np.testing.assert_allclose(found, reference(directory, tuple(FLAGS), modules, TEXTS), atol=1e-2)


@pytest.mark.parametrize("standard", [False, True])
def test_fp16_sums_do_not_overflow(tmp_path, save_checkpoint, standard):
    """Sums over 512 tokens, above the largest number of fp16, are computed in fp32."""
    source = read_source(
        save_checkpoint(tmp_path / "long", max_position_embeddings=512), settings={"pooling": tuple(FLAGS)}
    )
    model = source.load_model().eval()
    with torch.no_grad():
        model.bert.layers[-1].output_norm.bias += 300
    network = Network(model.config, Weights.from_model(model), source.task)
    run = graph_run(build_graph(network, FP16, GraphVariant(standard=standard)))
    ids = np.random.default_rng(0).integers(5, 60, (2, 512), dtype=np.int32)
    mask = (np.arange(512) < [[512], [300]]).astype(np.int32)
    arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}

    found = run(arrays)["sentence_embedding"]

    expected = torch_run(model, source.task)(arrays)["sentence_embedding"]
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
def test_prompts_of_the_library(folder, tmp_path, default):
    """Prompts and the default prompt of a folder give the library's vectors, after export and in other libraries."""
    library = pytest.importorskip("sentence_transformers")
    config = {"prompts": {"query": "the house ", "document": ""}, "default_prompt_name": default}
    directory = folder(config=config)
    model = export_checkpoint(directory, tmp_path / "vectors/1", UNTUNED)
    theirs = library.SentenceTransformer(str(directory), device="cpu", local_files_only=True)
    run = graph_run(model.model_path)

    for name in (None, "query", "document"):
        task = replace(model.load_task(), prompt_name=name)
        found, expected = np.stack(predict(task, TEXTS, run)), theirs.encode(TEXTS, prompt_name=name)
        np.testing.assert_allclose(found, expected, atol=1e-5)
    again = json.loads((model.path / "config_sentence_transformers.json").read_text())
    assert again == config | {"similarity_fn_name": None}


BROKEN = {
    "cut": ("2_Dense/model.safetensors", b"\0" * 20, "cannot read weights `.*2_Dense/model.safetensors`"),
    "other size": (
        "2_Dense/config.json",
        b'{"in_features": 32, "out_features": 9}',
        r"weights in `.*2_Dense` do not fit its `config\.json`: .* size mismatch for weight",
    ),
    "activation": (
        "2_Dense/config.json",
        b'{"activation_function": "mine.Swish"}',
        "unsupported activation_function `mine.Swish`",
    ),
    "pooling": ("1_Pooling/config.json", b'{"pooling_mode": "median"}', "unsupported pooling in .*: `median`"),
}


@pytest.mark.parametrize(("name", "content", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_folders_are_refused(folder, name, content, message):
    """Broken files and values that change vectors are errors that name the file."""
    directory = folder(("mean",), [dense(8)])
    (directory / name).unlink()
    if content is not None:
        (directory / name).write_bytes(content)

    with pytest.raises(ValueError, match=message):
        read_source(directory).load_model()


@pytest.mark.parametrize(("number", "path"), [(0, "../0_Transformer"), (1, "1_Pooling/../../other")])
def test_modules_outside_the_folder_are_refused(folder, number, path):
    """A module that is not inside the folder is refused, as a downloaded folder must not read other files."""
    directory = folder(("mean",), [])
    listed = json.loads((directory / "modules.json").read_text())
    listed[number]["path"] = path
    write_json(directory / "modules.json", listed)

    with pytest.raises(ValueError, match=r"modules\.json` names `.*`, which is outside its folder"):
        read_source(directory)


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ([("LSTM", {})], "unsupported module in .*: `LSTM`"),
        ([("custom_st.Dense", {})], "`custom_st.Dense` is code of its own"),
    ],
)
def test_other_modules_are_refused(folder, modules, message):
    """Modules that are not known, and modules that a folder brings as code, are errors."""
    directory = folder(("mean",), [])
    listed = json.loads((directory / "modules.json").read_text())
    for kind, _ in modules:
        listed.append({"path": "2", "type": kind if "." in kind else f"sentence_transformers.models.{kind}"})
    write_json(directory / "modules.json", listed)

    with pytest.raises(ValueError, match=message):
        read_source(directory)


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
