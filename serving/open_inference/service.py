"""Service of the protocol: health and metadata of server and models, and ModelInfer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

from google.protobuf.message import Message

from serving.core.calls import Call
from serving.core.endpoint import Request
from serving.core.limits import ParseLimits
from serving.core.models import Model
from serving.core.service import InferenceService
from serving.endpoints.methods import Method
from serving.open_inference import token_ids
from serving.open_inference.endpoint import ModelInfer, check_named, find_named
from serving.open_inference.task_tensors import TASK_TENSORS
from serving.open_inference.tensors import BYTES, TensorSpec, invalid_field
from serving.open_inference.v2 import service_pb2 as pb

PROTOCOL = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
SERVICE, METHODS = PROTOCOL.full_name, tuple(method.name for method in PROTOCOL.methods)

NAME = "bertline"
PLATFORMS = {"onnxruntime": "onnxruntime_onnx"}
"""Engine -> name that Triton gives it, if it has another one."""
EXTENSIONS = ("model_configuration",)
HEALTH = ("ServerLive", "ServerReady", "ModelReady")
"""Methods that are answered while the server is unavailable, too."""


class OpenInference:
    """Answers the protocol's calls with the models of the inference service."""

    def __init__(self, service: InferenceService, is_healthy: Callable[[str], bool]) -> None:
        """Set up the service.

        Args:
            service: holds the models, and answers ModelInfer.
            is_healthy: returns the health of a model, given as `name` or `name/version`; of the server for an empty
                string.
        """
        self._service = service
        self._is_healthy = is_healthy

    def methods(self) -> dict[str, Method]:
        """Return the methods by name: request and call -> serialised reply."""
        return {
            "ServerLive": _method(lambda _: pb.ServerLiveResponse(live=True)),
            "ServerReady": _method(lambda _: pb.ServerReadyResponse(ready=self._is_healthy(""))),
            "ModelReady": _method(self._model_ready),
            "ServerMetadata": _method(_server_metadata),
            "ModelMetadata": _method(self._model_metadata),
            "ModelInfer": partial(self._service.infer, ModelInfer()),
            "ModelConfig": _method(self._model_config),
            "RepositoryIndex": _method(self._repository_index),
        }

    def _model_ready(self, request: pb.ModelReadyRequest) -> Message:
        check_named(self._service.models, request.name)
        name = f"{request.name}/{request.version}" if request.version else request.name
        return pb.ModelReadyResponse(ready=self._is_healthy(name))

    def _model_metadata(self, request: pb.ModelMetadataRequest) -> Message:
        model = find_named(self._service.models, request.name, request.version)
        name, engine = model.manifest.name, model.execution.engine
        reply = pb.ModelMetadataResponse(name=name, platform=PLATFORMS.get(engine, engine))
        reply.versions.extend(item.manifest.version for item in self._service.models if item.manifest.name == name)
        for specs, tensors in ((input_specs(model), reply.inputs), (output_specs(model), reply.outputs)):
            for spec in specs:
                tensors.add(name=spec.name, datatype=spec.datatype, shape=spec.shape)
        return reply

    def _model_config(self, request: pb.ModelConfigRequest) -> Message:
        model = find_named(self._service.models, request.name, request.version)
        engine = model.execution.engine
        config = pb.ModelConfig(name=model.manifest.name, platform=PLATFORMS.get(engine, engine), backend=engine)
        for spec in input_specs(model):
            config.input.add(name=spec.name, data_type=_data_type(spec), dims=spec.shape, optional=True)
        for spec in output_specs(model):
            config.output.add(name=spec.name, data_type=_data_type(spec), dims=spec.shape)
        return pb.ModelConfigResponse(config=config)

    def _repository_index(self, request: pb.RepositoryIndexRequest) -> Message:
        if request.repository_name:
            raise invalid_field("repository_name", "there is one repository, without a name; leave it empty")
        manifests = [model.manifest for model in self._service.models]
        entries = [{"name": item.name, "version": item.version, "state": "READY"} for item in manifests]
        return pb.RepositoryIndexResponse(models=entries)


def input_specs(model: Model) -> list[TensorSpec]:
    """Return the input tensors for texts, then those for token ids."""
    return [*TASK_TENSORS[model.task.name].inputs, *token_ids.input_specs(model)]


def output_specs(model: Model) -> list[TensorSpec]:
    """Return the output tensors for texts, then those for token ids."""
    return [*TASK_TENSORS[model.task.name].outputs(model), *token_ids.output_specs(model)]


def _method(answer: Callable[[Any], Message]) -> Method:
    async def method(request: Request, call: Call) -> bytes:
        return answer(request.parse(ParseLimits())).SerializeToString()

    return method


def _server_metadata(request: pb.ServerMetadataRequest) -> Message:
    return pb.ServerMetadataResponse(name=NAME, version=version("bertline"), extensions=EXTENSIONS)


def _data_type(spec: TensorSpec) -> pb.DataType:
    return pb.DataType.Value("TYPE_STRING" if spec.datatype == BYTES else f"TYPE_{spec.datatype}")
