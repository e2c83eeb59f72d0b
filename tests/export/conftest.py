"""Tiny random BERTs saved by transformers, and model directories exported from them once for all tests."""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file

from export import ExportConfig, QualityLimits, export_checkpoint
from export.graph import AnyNetwork
from export.network import Network, Weights
from export.reporter import SILENT, Reporter
from export.source import read_source
from export.targets import default_configuration
from export.variant import GraphPrecision
from tasks.base import TaskSettings
from tasks.bundle.model_directory import ModelDirectory
from training.checkpoint.reader import load_model
from training.checkpoint.task_card import TaskCard
from training.checkpoint.writer import save_checkpoint as write_checkpoint
from training.model.heads import BertModel

VOCAB = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *string.ascii_lowercase,
    *(f"##{letter}" for letter in string.ascii_lowercase),
    *("the", "##ing", "é", "A", "##B", "博", ".", "'"),
]
TEXTS = ["the cat", "a", "going home, the bakery [MASK] closed.", "x y z " * 4]

SETTINGS = {"spans": {"max_query_length": 16}}
UNTUNED = ExportConfig(tune=False)

Save = Callable[..., Path]


def int8(**limits: Any) -> ExportConfig:
    """Return the config of an export in int8, without tuning."""
    return ExportConfig(precision="int8", tune=False, limits=QualityLimits(**limits))


def read_network(checkpoint: Path, task: str | None = None, **settings: Any) -> tuple[BertModel, Network]:
    """Return the network of a checkpoint in PyTorch, and as the graph writer reads it."""
    source = read_source(checkpoint, task=task, settings=settings)
    model = source.load_model().eval()
    return model, Network(model.config, Weights.from_model(model), source.task)


def save_ours(path: Path, checkpoint: Path, task: str, settings: TaskSettings, **card: Any) -> Path:
    """Save the network of a checkpoint as Bertline does, with a record of its training."""
    written = TaskCard(task=task, settings=settings, **card)
    write_checkpoint(path, load_model(checkpoint, task), tokenizer_from=checkpoint, card=written)
    return path


def random_texts(count: int, *, seed: int) -> list[str]:
    """Return texts of one to six words, each a token."""
    rng = np.random.default_rng(seed)
    words = [*string.ascii_lowercase, "the", "."]
    return [" ".join(rng.choice(words, rng.integers(1, 7))) for _ in range(count)]


PAIRS = list(zip(random_texts(40, seed=1), random_texts(40, seed=2), strict=True))
LABELS = np.random.default_rng(3).random(40).tolist()

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


def write_pairs(path: Path, pairs: Sequence[tuple[str, str]] = PAIRS, labels: Sequence[float] = LABELS) -> Path:
    """Write pairs of texts with similarities."""
    rows = [f"{first}\t{second}\t{label!r}" for (first, second), label in zip(pairs, labels, strict=True)]
    path.write_text("\n".join(["text\ttext_pair\tlabel", *rows, ""]))
    return path


def write_json(path, values):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(values))


def changed(name: str, **changes: Any) -> Callable[[Path], Any]:
    """Return a function that changes values of a JSON file in a directory; None removes a value."""

    def change(directory: Path) -> None:
        path = directory / name
        values = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))

    return change


@pytest.fixture(autouse=True)
def _slow_smoothquant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make SmoothQuant too slow to be taken, as the time of so small graphs is chance."""

    def times(graphs: Sequence[tuple[AnyNetwork, GraphPrecision]], *_: Any, **__: Any) -> dict[str, float]:
        return {precision.name: 1.0 + precision.matmul.startswith("SmoothQuant") for _, precision in graphs}

    monkeypatch.setattr("export.pipeline.compare_precisions", times)


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep measurements short, as speed does not matter here."""
    monkeypatch.setattr("export.autotune.timing.PASS_S", 1e-3)
    monkeypatch.setattr("export.autotune.timing.MIN_BATCHES", 1e-3)
    for name in ("FIELD_S", "FINALISTS_S"):
        monkeypatch.setattr(f"export.autotune.search.{name}", 0)


@pytest.fixture(scope="session")
def vocab() -> list[str]:
    return VOCAB


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return TEXTS


@pytest.fixture(scope="session")
def save_checkpoint() -> Save:
    """Save a tiny network of transformers, with its tokenizer, into a directory."""

    def save(directory: Path, class_name: str = "BertModel", *, lowercase: bool = True, **config: Any) -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        kwargs = {key: config.pop(key) for key in ("add_pooling_layer",) if key in config}
        shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
        values = {"vocab_size": len(VOCAB), "max_position_embeddings": 40, "initializer_range": 0.2, **shape}
        torch.manual_seed(1)
        network = getattr(transformers, class_name)(transformers.BertConfig(**values | config), **kwargs)
        network.save_pretrained(directory)
        (directory / "vocab.txt").write_text("\n".join(VOCAB) + "\n", encoding="utf-8")
        tokenizer = transformers.BertTokenizerFast(
            vocab_file=str(directory / "vocab.txt"), do_lower_case=lowercase, model_max_length=32
        )
        tokenizer.save_pretrained(directory)
        return directory

    return save


@pytest.fixture
def folder(tmp_path, save_checkpoint):
    """Write a folder of sentence-transformers, of an old or a new layout, with random weights."""

    def write(poolings=("mean",), modules=(), *, new=False, pickled=False, config=None, at="", lowercase=True):
        directory = tmp_path / "st"
        save_checkpoint(directory / at, lowercase=lowercase)
        types = NEW if new else OLD
        written = [("Transformer", {}), ("Pooling", pooling_config(poolings, new)), *modules]
        size, listed = 32 * len(poolings), []
        for index, (kind, values) in enumerate(written):
            path = at if kind == "Transformer" else f"{index}_{kind}"
            listed.append({"idx": index, "name": str(index), "path": path, "type": types.get(kind, kind)})
            if kind == "Dense":
                values = {"in_features": size, **values}
                size = write_dense(directory / path, values, index, pickled)
            if kind != "Transformer" and (values or new):
                write_json(directory / path / "config.json", values)
        write_json(directory / "modules.json", listed)
        write_json(directory / at / "sentence_bert_config.json", length_config(new))
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


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory, save_checkpoint: Save) -> dict[str, Path]:
    """Return a checkpoint of each task, and `plain` without a head."""
    root = tmp_path_factory.mktemp("checkpoints")
    labels = {"id2label": {0: "sports", 1: "weather", 2: "news"}, "label2id": {"sports": 0, "weather": 1, "news": 2}}
    tags = {"id2label": {0: "O", 1: "B-PER"}, "label2id": {"O": 0, "B-PER": 1}}
    plain, masked = save_checkpoint(root / "plain"), save_checkpoint(root / "masked-lm", "BertForMaskedLM")
    return {
        **{"plain": plain, "token-embedding": plain, "masked-lm": masked, "sparse-embedding": masked},
        "classification": save_checkpoint(root / "classification", "BertForSequenceClassification", **labels),
        "spans": save_checkpoint(root / "spans", "BertForQuestionAnswering", max_position_embeddings=80),
        "regression": save_checkpoint(root / "regression", "BertForSequenceClassification", num_labels=1),
        "multiple-choice": save_checkpoint(root / "multiple-choice", "BertForMultipleChoice"),
        "tagging": save_checkpoint(root / "tagging", "BertForTokenClassification", **tags),
    }


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory, checkpoints: dict[str, Path]) -> dict[str, ModelDirectory]:
    """Return a model directory of each task."""
    models = tmp_path_factory.mktemp("models")
    tasks = [name for name in checkpoints if name != "plain"]
    return {
        "embedding": export_checkpoint(checkpoints["plain"], models / "plain/1", UNTUNED),
        **{
            task: export_checkpoint(
                checkpoints[task], models / task / "1", UNTUNED, task=task, settings=SETTINGS.get(task)
            )
            for task in tasks
        },
    }


@pytest.fixture(scope="session")
def exported_int8(tmp_path_factory: pytest.TempPathFactory, checkpoints: dict[str, Path]) -> ModelDirectory:
    """Return a model directory of labels in dynamic int8."""
    path = tmp_path_factory.mktemp("int8") / "classification/1"
    return export_checkpoint(checkpoints["classification"], path, int8(min_cosine=0))


@pytest.fixture
def export(tmp_path: Path, checkpoints: dict[str, Path]) -> Callable[..., ModelDirectory]:
    """Export a checkpoint, or that of a task, into the temporary directory; `lines` receives the output."""

    def run(
        checkpoint: str | Path,
        config: ExportConfig = UNTUNED,
        *,
        to: str = "m/1",
        lines: list[str] | None = None,
        **options: Any,
    ) -> ModelDirectory:
        path = checkpoints[checkpoint] if isinstance(checkpoint, str) else checkpoint
        reporter = SILENT if lines is None else Reporter(lines.append)
        return export_checkpoint(path, tmp_path / to, config, reporter=reporter, **options)

    return run


@pytest.fixture(scope="session")
def random_batch() -> Callable[..., dict[str, np.ndarray]]:
    """Make padded arrays of a given shape."""

    def make(rows: int, length: int, seed: int = 0) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        lengths = np.array([length, *rng.integers(1, length, rows - 1, endpoint=True)])
        return {
            "input_ids": rng.integers(0, len(VOCAB), (rows, length), dtype=np.int32),
            "attention_mask": (np.arange(length) < lengths[:, None]).astype(np.int32),
            "token_type_ids": rng.integers(0, 2, (rows, length), dtype=np.int32),
        }

    return make


@pytest.fixture
def texts_file(tmp_path: Path, texts: list[str]) -> Path:
    """Write texts to calibrate on."""
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(texts * 4) + "\n")
    return path


@pytest.fixture
def untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `export tune` write the default configuration again, without timing any."""
    monkeypatch.setattr(
        "export.autotune.model_directory.autotune", lambda *_, target, **__: (default_configuration(target), [])
    )


@pytest.fixture
def with_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the CPU report bf16; OpenVINO computes it on every CPU, or takes fp32."""
    monkeypatch.setattr("export.variant.cpu_flags", lambda: frozenset({"avx512_bf16"}))
