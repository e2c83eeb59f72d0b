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

from export import ExportConfig, QualityLimits, export_checkpoint
from export.graph import AnyNetwork
from export.targets import default_configuration
from export.variant import GraphPrecision
from tasks.bundle.model_directory import ModelDirectory

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


def random_texts(count: int, *, seed: int) -> list[str]:
    """Return texts of one to six words, each a token."""
    rng = np.random.default_rng(seed)
    words = [*string.ascii_lowercase, "the", "."]
    return [" ".join(rng.choice(words, rng.integers(1, 7))) for _ in range(count)]


PAIRS = list(zip(random_texts(40, seed=1), random_texts(40, seed=2), strict=True))
LABELS = np.random.default_rng(3).random(40).tolist()


def write_pairs(path: Path, pairs: Sequence[tuple[str, str]] = PAIRS, labels: Sequence[float] = LABELS) -> Path:
    """Write pairs of texts with similarities."""
    rows = [f"{first}\t{second}\t{label!r}" for (first, second), label in zip(pairs, labels, strict=True)]
    path.write_text("\n".join(["text\ttext_pair\tlabel", *rows, ""]))
    return path


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


@pytest.fixture(scope="session")
def save_sentence_transformer(save_checkpoint: Save) -> Save:
    """Save a sentence-transformers folder."""

    def save(
        directory: Path,
        *,
        pooling: str = "mean_tokens",
        kinds: tuple[str, ...] = ("Pooling", "Normalize"),
        at: str = "",
        lowercase: bool = True,
    ) -> Path:
        save_checkpoint(directory / at, lowercase=lowercase)
        modules = [{"idx": 0, "name": "0", "path": at, "type": "sentence_transformers.models.Transformer"}]
        for index, kind in enumerate(kinds, 1):
            path = f"{index}_{kind}"
            (directory / path).mkdir()
            modules.append(
                {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            )
        (directory / "modules.json").write_text(json.dumps(modules))
        modes = {f"pooling_mode_{mode}": mode == pooling for mode in ("cls_token", "mean_tokens", "max_tokens")}
        (directory / "1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": 32, **modes}))
        (directory / at / "sentence_bert_config.json").write_text('{"max_seq_length": 24, "do_lower_case": false}')
        return directory

    return save


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory, save_checkpoint: Save) -> dict[str, Path]:
    """Return a checkpoint of each task, and `plain` without a head."""
    root = tmp_path_factory.mktemp("checkpoints")
    labels = {"id2label": {0: "sports", 1: "weather", 2: "news"}, "label2id": {"sports": 0, "weather": 1, "news": 2}}
    tags = {"id2label": {0: "O", 1: "B-PER"}, "label2id": {"O": 0, "B-PER": 1}}
    return {
        "plain": save_checkpoint(root / "plain"),
        "classification": save_checkpoint(root / "classification", "BertForSequenceClassification", **labels),
        "spans": save_checkpoint(root / "spans", "BertForQuestionAnswering", max_position_embeddings=80),
        "masked-lm": save_checkpoint(root / "masked-lm", "BertForMaskedLM"),
        "token-embedding": save_checkpoint(root / "token-embedding"),
        "sparse-embedding": save_checkpoint(root / "sparse-embedding", "BertForMaskedLM"),
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
    config = ExportConfig(precision="int8", tune=False, limits=QualityLimits(min_cosine=0))
    return export_checkpoint(
        checkpoints["classification"], tmp_path_factory.mktemp("int8") / "classification/1", config
    )


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
    monkeypatch.setattr("export.autotune.model_directory.autotune", lambda *_, **__: (default_configuration(), []))


@pytest.fixture
def with_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the CPU report bf16; OpenVINO computes it on every CPU, or takes fp32."""
    monkeypatch.setattr("export.variant.cpu_flags", lambda: frozenset({"avx512_bf16"}))
