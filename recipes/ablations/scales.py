"""Scales: sizes of networks, corpus and runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Shape = tuple[int, int, int]
"""Layers, hidden size, heads."""
ScaleName = Literal["smoke", "small", "mini", "full"]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Sizes of networks, corpus and runs."""

    num_text_files: int | None
    """Number of files to pretrain on, evenly spread over all; None for all."""
    vocab_size: int
    shape: Shape
    shapes: tuple[Shape, ...]
    """Shapes of table 6."""
    bilstm: Mapping[str, Any]
    """Fields of fine-tuning recipes with a BiLSTM, whose weights are random at first."""
    bilstm_epochs: float
    """Factor of the number of epochs with a BiLSTM."""
    pretraining: Mapping[str, Any]
    """Fields of every pretraining recipe. The number of steps is the same, except in the table of steps."""
    finetuning: Mapping[str, Any]
    """Fields of every fine-tuning recipe."""
    spans: Mapping[str, Any]
    """Further fields for SQuAD."""
    features: Mapping[str, Any]
    """Further fields with a frozen encoder."""
    epochs: float
    """Factor of the number of epochs of each data set."""
    seeds: tuple[int, ...]
    tasks: tuple[str, ...]
    caution: str = ""
    """Caution to print with the tables."""


_SMALL_BUDGET = {"initialization": "local", "dropout": 0.0, "max_seq_length": 128, "max_position_embeddings": 512}
"""BERT's own start would spend a small budget on the plateau, and all rows would be alike (docs/experiments)."""

SCALES: dict[ScaleName, Scale] = {
    "smoke": Scale(
        num_text_files=1,
        vocab_size=1000,
        shape=(2, 32, 2),
        shapes=((1, 32, 2), (2, 32, 2)),
        bilstm={"bilstm": 8},
        bilstm_epochs=1,
        pretraining={**_SMALL_BUDGET, "num_steps": 8, "global_batch_size": 8, "learning_rate": 2e-3, "eval_every": 0}
        | {"eval_examples": 32, "max_seq_length": 64},
        finetuning={"learning_rate": 1e-3, "eval_examples": 32, "max_seq_length": 64},
        spans={"doc_stride": 16, "max_query_length": 24},
        features={},
        epochs=0.1,
        seeds=(0,),
        tasks=("MRPC", "NER"),
        caution=" (too small to compare: it only shows that everything works)",
    ),
    "small": Scale(
        num_text_files=4,
        vocab_size=8000,
        shape=(2, 128, 2),
        shapes=((1, 128, 2), (2, 64, 1), (2, 128, 2), (4, 128, 2), (4, 256, 4)),
        bilstm={"bilstm": 128, "learning_rate": 1e-3},
        bilstm_epochs=3,
        pretraining={**_SMALL_BUDGET, "num_steps": 1200, "global_batch_size": 32, "learning_rate": 2e-3}
        | {"checkpoint_every": 100, "keep_last": 1, "eval_every": 0},
        finetuning={"learning_rate": 5e-4, "eval_examples": 100, "checkpoint_every": 100, "keep_last": 1}
        | {"max_seq_length": 128},
        spans={"doc_stride": 64, "max_query_length": 32},
        features={"learning_rate": 3e-3},
        epochs=1,
        seeds=(0, 1),
        tasks=("SST-2", "MRPC", "RTE", "SQuAD", "NER"),
    ),
    "mini": Scale(
        num_text_files=None,
        vocab_size=8192,
        shape=(4, 256, 4),
        shapes=((2, 128, 2), (2, 256, 4), (4, 256, 4), (6, 256, 4)),
        bilstm={"bilstm": 256},
        bilstm_epochs=2,
        pretraining={**_SMALL_BUDGET, "num_steps": 1600, "global_batch_size": 32, "learning_rate": 2e-3}
        | {"masking_rate": 0.45, "checkpoint_every": 200, "keep_last": 1, "eval_every": 0},
        finetuning={"learning_rate": 3e-4, "eval_examples": 100, "checkpoint_every": 0, "max_seq_length": 128},
        spans={"doc_stride": 64, "max_query_length": 32},
        features={"learning_rate": 3e-3},
        epochs=1,
        seeds=(0,),
        tasks=("SST-2", "MRPC", "SQuAD", "NER"),
    ),
    "full": Scale(
        num_text_files=None,
        vocab_size=30522,
        shape=(8, 512, 8),
        shapes=((3, 512, 8), (4, 256, 4), (6, 512, 8), (8, 512, 8), (12, 768, 12)),
        bilstm={"bilstm": 768},
        bilstm_epochs=1,
        pretraining={"num_steps": 20_000, "global_batch_size": 256, "micro_batch_size": 256, "learning_rate": 5e-4}
        | {"long_seq_length": 384, "checkpoint_every": 1000, "keep_last": 1, "eval_every": 0, "eval_examples": 4096},
        finetuning={"learning_rate": 5e-5, "eval_examples": 500, "checkpoint_every": 1000, "max_seq_length": 128},
        spans={"max_seq_length": 384},
        features={"learning_rate": 1e-3},
        epochs=3,
        seeds=(0, 1, 2),
        tasks=("SST-2", "MRPC", "RTE", "SQuAD", "NER"),
    ),
}
"""`smoke` checks that it runs (minutes); `small` and `mini` take hours on 2 CPU cores; `full` a day on a GPU."""
