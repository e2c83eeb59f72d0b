"""The service: what a server is asked about itself and its models, and ModelInfer."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

from google.protobuf.message import Message

from serving.core.admission import Admitted, Incoming
from serving.core.codec_pool import SEQUENCE_BYTES
from serving.core.models import Model, Models
from serving.core.service import Behaviour, Computable, Servicer
from serving.endpoints.wire import parse
from serving.open_inference import token_ids
from serving.open_inference.forms import FORMS
from serving.open_inference.tensors import BYTES, TensorSpec, check_shapes, wrong
from serving.open_inference.texts import TextWork
from serving.open_inference.token_ids import TokenIdWork
from serving.open_inference.v2 import service_pb2 as pb
from tasks.features import INPUT_NAMES

SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
METHODS = tuple(method.name for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods)

NAME, PLATFORM, BACKEND = "bertline", "onnxruntime_onnx", "onnxruntime"
EXTENSIONS = ("model_configuration",)
HEALTH = ("ServerLive", "ServerReady", "ModelReady")


class OpenInference:
    """Answers the protocol's calls with the models, the scheduler and the counting of our own service."""

    def __init__(self, servicer: Servicer, is_healthy: Callable[[str], bool]) -> None:
        """Answer with what a servicer has.

        Args:
            is_healthy: what health says of a model, by `name` or `name/version`; empty for the server.
        """
        self._servicer = servicer
        self._is_healthy = is_healthy

    def handlers(self) -> Any:
        """What a server needs to route calls here; health is told whatever the state, in the protocol's own words."""
        behaviours: dict[str, Behaviour] = {
            "ServerLive": _answering(pb.ServerLiveRequest, lambda _: pb.ServerLiveResponse(live=True)),
            "ServerReady": _answering(pb.ServerReadyRequest, self._server_ready),
            "ModelReady": _answering(pb.ModelReadyRequest, self._model_ready),
            "ServerMetadata": _answering(pb.ServerMetadataRequest, _server_metadata),
            "ModelMetadata": _answering(pb.ModelMetadataRequest, self._model_metadata),
            "ModelInfer": partial(self._servicer.compute, self._prepare),
            "ModelConfig": _answering(pb.ModelConfigRequest, self._model_config),
            "RepositoryIndex": _answering(pb.RepositoryIndexRequest, self._repository_index),
        }
        return self._servicer.route(SERVICE, behaviours, always=HEALTH)

    def _find(self, name: str, version: str, field: str = "name") -> Model:
        _check_named(name, self._servicer.models, field)
        return self._servicer.models.find(name, version)

    def _server_ready(self, request: pb.ServerReadyRequest) -> Message:
        return pb.ServerReadyResponse(ready=self._is_healthy(""))

    def _model_ready(self, request: pb.ModelReadyRequest) -> Message:
        _check_named(request.name, self._servicer.models)
        name = f"{request.name}/{request.version}" if request.version else request.name
        return pb.ModelReadyResponse(ready=self._is_healthy(name))

    def _model_metadata(self, request: pb.ModelMetadataRequest) -> Message:
        model = self._find(request.name, request.version)
        name = model.manifest.name
        reply = pb.ModelMetadataResponse(name=name, platform=PLATFORM)
        reply.versions.extend(item.manifest.version for item in self._servicer.models if item.manifest.name == name)
        for specs, tensors in ((input_specs(model), reply.inputs), (output_specs(model), reply.outputs)):
            for spec in specs:
                tensors.add(name=spec.name, datatype=spec.datatype, shape=spec.shape)
        return reply

    def _model_config(self, request: pb.ModelConfigRequest) -> Message:
        model = self._find(request.name, request.version)
        config = pb.ModelConfig(name=model.manifest.name, platform=PLATFORM, backend=BACKEND)
        for spec in input_specs(model):
            config.input.add(name=spec.name, data_type=_data_type(spec), dims=spec.shape, optional=True)
        for spec in output_specs(model):
            config.output.add(name=spec.name, data_type=_data_type(spec), dims=spec.shape)
        return pb.ModelConfigResponse(config=config)

    def _repository_index(self, request: pb.RepositoryIndexRequest) -> Message:
        if request.repository_name:
            raise wrong("repository_name", "there is one repository, without a name; leave it empty")
        manifests = [model.manifest for model in self._servicer.models]
        entries = [{"name": item.name, "version": item.version, "state": "READY"} for item in manifests]
        return pb.RepositoryIndexResponse(models=entries)

    def _prepare(self, incoming: Incoming) -> tuple[Admitted, Callable[[], Computable]]:
        request = parse(pb.ModelInferRequest, incoming.raw, self._servicer.intake.reading(incoming))
        model = self._find(request.model_name, request.model_version, "model_name")
        check_shapes(request)
        num_inputs = max((item.shape[0] for item in request.inputs if item.shape), default=0)
        intake = self._servicer.intake
        intake.receive(incoming, model, num_inputs)
        size, most_tokens = _size(request, len(incoming.raw)), _most_tokens(request, model)
        admitted = intake.admit(incoming, model, num_inputs, size=size, most_tokens=most_tokens)
        for item in request.inputs:
            if item.datatype == BYTES:
                intake.limits.check_count(math.prod(item.shape), "elements")
        sent = {item.name for item in request.inputs}
        if not sent & set(INPUT_NAMES):
            return admitted, partial(TextWork.of, request, model, partial(intake.encode, incoming))
        if sent & {spec.name for spec in FORMS[model.task.name].inputs}:
            raise wrong("inputs", "texts and token ids came; send one or the other")
        return admitted, partial(TokenIdWork.of, request, model)


def _check_named(name: str, models: Models, field: str = "name") -> None:
    if not name:
        raise wrong(field, f"empty; name a model (loaded: {', '.join(models.names)})")


def _size(request: pb.ModelInferRequest, num_bytes: int) -> int:
    """Bytes of a request that is as much work; what goes with choices is read again with each of them."""
    shapes = [item.shape for item in request.inputs if item.datatype == BYTES]
    num_choices = max((shape[1] for shape in shapes if len(shape) == 2), default=1)
    return max([num_bytes * num_choices, *(SEQUENCE_BYTES * math.prod(shape) for shape in shapes)])


def _most_tokens(request: pb.ModelInferRequest, model: Model) -> float:
    """That the model may get to read of a request; infinite where it reads all there is, in windows."""
    sizes = {item.name: math.prod(item.shape) for item in request.inputs}
    if sizes.keys() & set(INPUT_NAMES):
        return max(sizes.values())
    length = model.task.settings.max_seq_length
    return math.inf if FORMS[model.task.name].windowed else length * max(sizes.values(), default=0)


def _answering(request_type: type[Any], answer: Callable[[Any], Message]) -> Behaviour:
    async def behaviour(raw: bytes, context: Any) -> bytes:
        return answer(parse(request_type, raw)).SerializeToString()

    return behaviour


def input_specs(model: Model) -> list[TensorSpec]:
    """The tensors of texts, then those of token ids."""
    return [*FORMS[model.task.name].inputs, *token_ids.input_specs(model)]


def output_specs(model: Model) -> list[TensorSpec]:
    """What texts give, then what token ids give."""
    return [*FORMS[model.task.name].outputs(model), *token_ids.output_specs(model)]


def _server_metadata(request: pb.ServerMetadataRequest) -> Message:
    return pb.ServerMetadataResponse(name=NAME, version=version("bertline"), extensions=EXTENSIONS)


def _data_type(spec: TensorSpec) -> pb.DataType:
    return pb.DataType.Value("TYPE_STRING" if spec.datatype == BYTES else f"TYPE_{spec.datatype}")
