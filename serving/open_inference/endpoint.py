"""ModelInfer: runs a model on texts or on token ids."""

from __future__ import annotations

import math

from serving.core.codec_pool import SEQUENCE_BYTES
from serving.core.endpoint import Endpoint, Inference
from serving.core.limits import RequestLimits
from serving.core.models import Model, Models
from serving.open_inference.task_tensors import TASK_TENSORS
from serving.open_inference.tensors import BYTES, check_shapes, invalid_field
from serving.open_inference.texts import TextTensorInference
from serving.open_inference.token_ids import TokenIdInference
from serving.open_inference.v2 import service_pb2 as pb
from tasks.features import INPUT_NAMES


class ModelInfer(Endpoint):
    """Tensors of texts or token ids -> tensors of the task's predictions or of the graph's outputs."""

    def find_model(self, models: Models, request: pb.ModelInferRequest) -> Model:
        """Return the model of this name."""
        return find_named(models, request.model_name, request.model_version, "model_name")

    def num_inputs(self, request: pb.ModelInferRequest) -> int:
        """Return the length of the longest input. Raise InvalidRequestError for invalid shapes."""
        check_shapes(request)
        return max((item.shape[0] for item in request.inputs if item.shape), default=0)

    def encode_cost_bytes(self, request: pb.ModelInferRequest, num_bytes: int) -> int:
        """Return the cost of encoding in bytes of plain text. Each choice repeats context and question."""
        shapes = [item.shape for item in request.inputs if item.datatype == BYTES]
        num_choices = max((shape[1] for shape in shapes if len(shape) == 2), default=1)
        return max([num_bytes * num_choices, *(SEQUENCE_BYTES * math.prod(shape) for shape in shapes)])

    def max_tokens(self, request: pb.ModelInferRequest, model: Model) -> float:
        """Return the maximum number of tokens that the model reads; infinity if it splits texts."""
        sizes = {item.name: math.prod(item.shape) for item in request.inputs}
        if sizes.keys() & set(INPUT_NAMES):
            return max(sizes.values())
        if TASK_TENSORS[model.task.name].windowed_fields:
            return math.inf
        return model.task.settings.max_seq_length * max(sizes.values(), default=0)

    def prepare(self, request: pb.ModelInferRequest, model: Model, limits: RequestLimits) -> Inference:
        """Return the inference on the texts or the token ids of the request."""
        for item in request.inputs:
            if item.datatype == BYTES:
                limits.check_count(math.prod(item.shape), "elements")
        tensors, sent = TASK_TENSORS[model.task.name], {item.name for item in request.inputs}
        if not sent & set(INPUT_NAMES):
            return TextTensorInference(request, model, tensors)
        if sent & {spec.name for spec in tensors.inputs}:
            raise invalid_field("inputs", "texts and token ids together; send one or the other")
        return TokenIdInference(request, model)


def find_named(models: Models, name: str, version: str, field: str = "name") -> Model:
    """Return the model of a name and version; unlike `bertline.v1`, the protocol has no default model.

    Args:
        models: loaded models.
        name: name of the model, as sent.
        version: version, as sent; empty for the highest one.
        field: field of the request that holds the name.
    """
    check_named(models, name, field)
    return models.find(name, version)


def check_named(models: Models, name: str, field: str = "name") -> None:
    """Raise InvalidRequestError if the name is empty."""
    if not name:
        raise invalid_field(field, f"empty; name a model (loaded: {', '.join(models.names)})")
