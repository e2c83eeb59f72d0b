"""Graphs that Optimum exports from a network, to compare with ours.

Plain, and at optimisation level O3, in fp32 or quantised as its documentation advises for CPUs with VNNI.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onnx import TensorProto
from onnxruntime.quantization import QuantType, quantize_dynamic

from export.optimum_export.quiet import quiet
from training.model.architectures import ARCHITECTURES
from training.model.heads import BertForSequenceClassification, BertForTokenClassification, BertModel, task_of

_CLASSES = {
    "embedding": ("BertModel", "ORTModelForFeatureExtraction"),
    "classification": ("BertForSequenceClassification", "ORTModelForSequenceClassification"),
    "regression": ("BertForSequenceClassification", "ORTModelForSequenceClassification"),
    "multiple-choice": ("BertForMultipleChoice", "ORTModelForMultipleChoice"),
    "tagging": ("BertForTokenClassification", "ORTModelForTokenClassification"),
    "spans": ("BertForQuestionAnswering", "ORTModelForQuestionAnswering"),
    "masked-lm": ("BertForMaskedLM", "ORTModelForMaskedLM"),
}
"""Classes of transformers and Optimum, by task."""


def is_known_to_optimum(model_type: str) -> bool:
    """Return whether Optimum can export this family: its version of transformers has it."""
    import transformers

    return model_type in transformers.CONFIG_MAPPING


def optimum_graphs(model: BertModel, task: str, directory: Path, *, int8: bool) -> dict[str, Path]:
    """Export a network with Optimum.

    Args:
        directory: directory to write to.
        int8: True for quantised graphs, too. With mean pooling, the plain one is the faster in BERT, RoBERTa,
            DistilBERT, MPNet and ModernBERT.

    Returns:
        Paths of the graphs by name: "Optimum", "Optimum O3", and both with ", int8" if asked for. Their inputs are
        int64.
    """
    with quiet():
        plain, optimised = _export(model, task, directory)
        graphs = {"Optimum": plain, "Optimum O3": optimised}
        if not int8:
            return graphs
        int8_graphs = {f"{name}, int8": _quantise(graphs[name], directory) for name in ("Optimum", "Optimum O3")}
        return {**graphs, **int8_graphs}


def _quantise(graph: Path, directory: Path) -> Path:
    """Quantise the matrix products of a graph dynamically."""
    quantised = directory / f"{graph.parent.name}_int8.onnx"
    quantize_dynamic(
        graph,
        quantised,
        op_types_to_quantize=["MatMul", "Attention"],
        per_channel=True,
        weight_type=QuantType.QInt8,
        # Shape inference cannot see through fused nodes, whose outputs are float.
        extra_options={"DefaultTensorType": TensorProto.FLOAT},
    )
    return quantised


def _export(model: BertModel, task: str, directory: Path) -> tuple[Path, Path]:
    import optimum.onnxruntime as theirs  # slow to import, and warns
    import transformers

    network_class, ort_class = _CLASSES[task]
    network_class = ARCHITECTURES[model.config.model_type].class_name(network_class)
    _to_transformers(model, getattr(transformers, network_class), task == "embedding").save_pretrained(
        directory / "checkpoint"
    )
    exported = getattr(theirs, ort_class).from_pretrained(directory / "checkpoint", export=True)
    exported.save_pretrained(directory / "plain")
    config = theirs.AutoOptimizationConfig.O3()
    theirs.ORTOptimizer.from_pretrained(exported).optimize(save_dir=directory / "o3", optimization_config=config)
    return directory / "plain/model.onnx", directory / "o3/model_optimized.onnx"


def _to_transformers(model: BertModel, network_class: Any, is_bare: bool) -> Any:
    """Return transformers' network with the same weights."""
    import transformers
    from transformers.modeling_utils import no_init_weights

    labelled = isinstance(model, BertForSequenceClassification | BertForTokenClassification)
    num_labels = {"num_labels": len(model.state_dict()["classifier.bias"])} if labelled else {}
    family = ARCHITECTURES[model.config.model_type]
    values: dict[str, Any] = family.write_config(model.config) | {"attn_implementation": "eager"} | num_labels
    config = transformers.AutoConfig.for_model(**values)
    with no_init_weights():
        network = network_class(config)
    network.tie_weights()  # part of the skipped initialisation
    weights = family.to_hugging_face(model.state_dict(), task_of(model))
    if is_bare:
        weights = {name.removeprefix(family.prefix): value for name, value in weights.items()}
    missing, _ = network.load_state_dict(weights, strict=False)
    assert all("decoder." in name or "projector." in name or "pooler." in name for name in missing), missing
    return network
