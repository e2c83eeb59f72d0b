"""Checkpoint to ONNX graph, by Optimum.

The weights come from our network (`training.checkpoint` reads every layout, pickles safely, and refuses what lacks a
head); transformers' network of the same shape takes them, since that is what Optimum traces.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from export._quiet import quiet
from training.checkpoint import to_hugging_face
from training.model.bert import BertForSequenceClassification, BertModel

OPSET = 17
"""The first with LayerNormalization."""

_MAX_BYTES = 2_000_000_000
_OPTIMUM_TASKS = {
    "embedding": ("BertModel", "feature-extraction"),
    "classification": ("BertForSequenceClassification", "text-classification"),
    "spans": ("BertForQuestionAnswering", "question-answering"),
    "masked-lm": ("BertForMaskedLM", "fill-mask"),
}
"""transformers' class and Optimum's name of each task."""


def export_graph(model: BertModel, task: str, path: Path) -> None:
    """Write the graph of a network: inputs int64 [batch, length], both dynamic; outputs as the task names them.

    Raises:
        ValueError: when the graph would not fit in one file.
    """
    num_bytes = sum(4 * value.numel() for value in model.state_dict().values())
    if num_bytes > _MAX_BYTES:
        raise ValueError(f"network of {num_bytes / 1e9:.1f} GB; graphs up to 2 GB are supported")
    with quiet():
        _trace(model, task, path)


def _trace(model: BertModel, task: str, path: Path) -> None:
    import transformers  # here, as these take seconds to import, and warn
    from optimum.exporters.onnx import export
    from optimum.exporters.onnx.model_configs import BertOnnxConfig
    from transformers.modeling_utils import no_init_weights

    class_name, optimum_task = _OPTIMUM_TASKS[task]
    num_labels = model.classifier.out_features if isinstance(model, BertForSequenceClassification) else 2
    # Eager attention gives a plainer graph than SDPA: the scale of the scores folds into the product.
    config = transformers.BertConfig(**asdict(model.config), num_labels=num_labels, attn_implementation="eager")
    network_class = getattr(transformers, class_name)
    with no_init_weights():
        network = network_class(config, add_pooling_layer=False) if task == "embedding" else network_class(config)
    network.tie_weights()  # part of the initialisation that was left out
    weights = to_hugging_face(model.state_dict())
    if task == "embedding":
        weights = {name.removeprefix("bert."): value for name, value in weights.items()}
    missing, _ = network.load_state_dict(weights, strict=False)
    assert all(name.startswith("cls.predictions.decoder.") for name in missing), missing  # those are tied
    # A batch of one would bake the batch axis into the graph.
    shapes = {"batch_size": 2, "sequence_length": 8}
    export(network, BertOnnxConfig(config, task=optimum_task), path, opset=OPSET, input_shapes=shapes)
