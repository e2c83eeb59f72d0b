"""The service `bertline.v1.Encoder`: its RPCs that run a model, and those that tell of models."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from io import BytesIO
from typing import Any

import grpc

from bertline.v1 import encoder_pb2 as pb
from serving.core.admission import Admitted, Incoming
from serving.core.codec_pool import SEQUENCE_BYTES
from serving.core.models import Model
from serving.core.service import ADMITTED_BYTES, Behaviour, Servicer, deadline_of
from serving.endpoints import RPCS, Rpc
from serving.endpoints.catalog import describe, reference, tokenize, write_results
from serving.endpoints.wire import parse
from serving.endpoints.work import Work
from serving.grpc_api.current import current_call
from tasks.base import AnyTask

SERVICE = pb.DESCRIPTOR.services_by_name["Encoder"].full_name
METHODS = tuple(method.name for method in pb.DESCRIPTOR.services_by_name["Encoder"].methods)


class Encoder:
    """Answers the service's calls."""

    def __init__(self, servicer: Servicer) -> None:
        self._servicer = servicer

    def handlers(self) -> grpc.GenericRpcHandler:
        """What a server needs to route calls here."""
        behaviours: dict[str, Behaviour] = {
            rpc.name: partial(self._servicer.compute, partial(self._prepare, rpc)) for rpc in RPCS
        }
        behaviours |= {"Tokenize": self._tokenize, "ListModels": self._list_models, "GetModel": self._get_model}
        return self._servicer.route(SERVICE, behaviours)

    def _prepare(self, rpc: Rpc, incoming: Incoming) -> tuple[Admitted, Callable[[], Work]]:
        request: Any = parse(rpc.request_type, incoming.raw, self._servicer.intake.reading(incoming))
        model = self._servicer.models.find(request.model.name, request.model.version, rpc.task)
        intake, num_inputs = self._servicer.intake, len(getattr(request, rpc.inputs))
        intake.receive(incoming, model, num_inputs)
        size, most_tokens = rpc.size(request), rpc.most_tokens(request, model.task)
        admitted = intake.admit(incoming, model, num_inputs, size=size, most_tokens=most_tokens)
        for what, count in rpc.parts(request).items():
            field = what if what in request.DESCRIPTOR.fields_by_name else rpc.inputs
            intake.limits.check_count(count, what, field=field)
        return admitted, partial(self._encode, rpc, request, model, rpc.specialise(model, request), incoming)

    def _encode(self, rpc: Rpc, request: Any, model: Model, task: AnyTask, incoming: Incoming) -> Work:
        examples, windows = self._servicer.intake.encode(
            incoming,
            model,
            task,
            rpc.examples(request, task),
            truncate=request.truncate if request.HasField("truncate") else None,
            windowed=rpc.windowed(request),
            field=lambda invalid: rpc.field(invalid, request),
        )
        rpc.check_windows(windows, request, task)
        return Work(rpc, request, model, task, examples, windows, incoming.call.stages[-1].seconds)

    async def _tokenize(self, raw: bytes, context: grpc.aio.ServicerContext) -> bytes:
        incoming = Incoming(raw, deadline_of(context), current_call())
        prepare = partial(self._prepare_tokenize, incoming)
        model, inputs = await self._servicer.offload.run(incoming.call, len(raw), prepare, small=ADMITTED_BYTES)
        size = max(len(raw), SEQUENCE_BYTES * len(inputs))
        # A reply that names every token takes longer than its request tells.
        return await self._servicer.tokenizing.run(
            incoming.call, size, partial(self._tokens, incoming, model, inputs), small=0
        )

    def _prepare_tokenize(self, incoming: Incoming) -> tuple[Model, Sequence[pb.TextInput]]:
        request = parse(pb.TokenizeRequest, incoming.raw, self._servicer.intake.reading(incoming))
        model = self._servicer.models.find(request.model.name, request.model.version)
        self._servicer.intake.receive(incoming, model, len(request.inputs))
        return model, request.inputs

    def _tokens(self, incoming: Incoming, model: Model, inputs: Sequence[pb.TextInput]) -> bytes:
        texts = {f"inputs[{index}].text": item.text for index, item in enumerate(inputs)}
        pairs = {f"inputs[{index}].text_pair": item.text_pair for index, item in enumerate(inputs)}
        self._servicer.intake.limits.check_chars(texts | pairs)
        started_s = time.monotonic()
        tokenizer = model.task.tokenizer.with_progress(self._servicer.intake.watch(incoming, model))
        data = BytesIO()  # gives what it holds without a copy of it
        num_tokens = write_results(data, incoming.wanted(tokenize(tokenizer, inputs)))
        seconds = self._servicer.intake.encoded(incoming, model, started_s)
        timings = pb.Timings(tokenize_s=seconds)
        reply = pb.TokenizeReply(model=reference(model), num_tokens=num_tokens, timings=timings)
        data.write(reply.SerializeToString())
        return data.getvalue()

    async def _list_models(self, raw: bytes, context: grpc.aio.ServicerContext) -> bytes:
        parse(pb.ListModelsRequest, raw)
        versions = self._servicer.models.versions
        return pb.ListModelsReply(models=[describe(item) for item in versions]).SerializeToString()

    async def _get_model(self, raw: bytes, context: grpc.aio.ServicerContext) -> bytes:
        request, models = parse(pb.GetModelRequest, raw), self._servicer.models
        model = models.find(request.model.name, request.model.version)
        return next(describe(item) for item in models.versions if item.model is model).SerializeToString()
