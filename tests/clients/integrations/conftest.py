"""Random BERT, as a SentenceTransformer and as a served model, and a classifier."""

from __future__ import annotations

import string
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer, models

from bertline import Client
from export import ExportConfig, export_checkpoint
from tests.clients.integrations.benchmark import make_retrieval, make_sts
from tests.serving.conftest import serve
from tests.serving.models import write_model

WORDS = "owl owls tree oak river cat sleep in the old at night near ? . :".split()
LETTERS = [*string.ascii_lowercase, *(f"##{letter}" for letter in string.ascii_lowercase)]
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *LETTERS]
MAX_SEQ_LENGTH = 24
TEXTS = ["Owls sleep in the old oak.", "A cat at night?", "the river", "owl", "near the river: an owl " * 12]


def save_sentence_transformer(folder: Path, *, normalize: bool) -> SentenceTransformer:
    """Save a random network with mean pooling as sentence-transformers does."""
    torch.manual_seed(7)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = transformers.BertConfig(vocab_size=len(VOCAB), max_position_embeddings=40, initializer_range=0.2, **shape)
    bert = folder.with_name(f"{folder.name}-bert")
    transformers.BertModel(config).save_pretrained(bert)
    (bert / "vocab.txt").write_text("\n".join(VOCAB) + "\n", encoding="utf-8")
    transformers.BertTokenizerFast(vocab_file=str(bert / "vocab.txt"), model_max_length=32).save_pretrained(bert)
    network = models.Transformer(str(bert), max_seq_length=MAX_SEQ_LENGTH)
    modules = [network, models.Pooling(32, pooling_mode="mean"), *([models.Normalize()] if normalize else [])]
    made = SentenceTransformer(modules=modules, device="cpu")
    made.save(str(folder), create_model_card=False)
    return made


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return the target of a server with its models, and the SentenceTransformers `plain` and `unit` (normalised) that
    they come from."""
    folder = tmp_path_factory.mktemp("integrations")
    references = {}
    for name in ("plain", "unit"):
        references[name] = save_sentence_transformer(folder / name, normalize=name == "unit")
        export_checkpoint(folder / name, folder / "models" / name / "1", ExportConfig(tune=False), task="embedding")
    write_model(folder / "models", "labels", task="classification")
    write_model(folder / "models", "ranker", task="regression")
    with serve(folder / "models") as running:
        yield SimpleNamespace(target=running.target, models=folder / "models", **references)


@pytest.fixture(scope="session")
def served_client(served: Any) -> Iterator[Client]:
    """Return a client of that server."""
    with Client(served.target, batch_size=4) as client:
        yield client


@pytest.fixture(scope="module")
def mteb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Import MTEB with its results folder in a temporary folder, not in the home of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MTEB_CACHE", str(tmp_path_factory.mktemp("mteb")))
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield pytest.importorskip("mteb", reason="mteb is not installed; it is in the group `mteb`")


@pytest.fixture(scope="module")
def sts(mteb: Any) -> Any:
    """Return a task of pairs of texts."""
    return make_sts(mteb)


@pytest.fixture(scope="module")
def retrieval(mteb: Any) -> Any:
    """Return a task of queries and documents."""
    return make_retrieval(mteb)
