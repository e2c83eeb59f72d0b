"""Constructor and first step of both clients, and how their methods are made of operations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields
from functools import partial, wraps
from typing import Any, ParamSpec, Self, TypeVar

import grpc

from bertline._coalescing import Coalescer, Member
from bertline._connection import Connection, Priority
from bertline._convert import Call, ReplyCollector
from bertline._inputs import read_flag, read_timeout
from bertline.errors import InvalidInput, Overloaded, ServerError

ParametersT = ParamSpec("ParametersT")
ResultT = TypeVar("ResultT")
MethodT = TypeVar("MethodT", bound=Callable[..., Any])


def described_by(operation: Callable[..., Call[Any]]) -> Callable[[MethodT], MethodT]:
    """Return a decorator that gives a method the name, the docstring and the signature of an operation."""
    signature = inspect.signature(operation)
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD), *signature.parameters.values()]
    result = signature.return_annotation.removeprefix("Call[").removesuffix("]")

    def describe(method: MethodT) -> MethodT:
        described: Any = wraps(operation)(method)
        described.__annotations__ = operation.__annotations__ | {"return": result}
        described.__signature__ = signature.replace(parameters=parameters, return_annotation=result)
        return method

    return describe


class Sender:
    """Connection of a client, and the calls that wait for others. Base of `Client` and `AsyncClient`."""

    def __init__(
        self,
        target: str = "127.0.0.1:50051",
        *,
        timeout: float = 30.0,
        batch_size: int = 64,
        num_in_flight: int = 4,
        credentials: grpc.ChannelCredentials | None = None,
        token: str | None = None,
        check_health: bool | None = None,
        priority: Priority = "interactive",
        coalesce: bool = True,
        space: str | None = None,
    ) -> None:
        self._connection = Connection(
            target=target,
            timeout=timeout,
            batch_size=batch_size,
            num_in_flight=num_in_flight,
            credentials=credentials,
            token=token,
            check_health=check_health,
            priority=priority,
            space=space,
        )
        self._closed = False
        self._coalescer = (
            Coalescer(self._connection.num_in_flight, self._connection.batch_size)
            if read_flag("coalesce", coalesce)
            else None
        )
        self._set_up()

    def _arguments(self) -> dict[str, Any]:
        """Return the arguments of a client like this one."""
        connection = {item.name: getattr(self._connection, item.name) for item in fields(self._connection)}
        return {**connection, "coalesce": self._coalescer is not None}

    def __copy__(self) -> Self:
        return type(self)(**self._arguments())

    def __deepcopy__(self, memo: Any) -> Self:
        return self.__copy__()

    def __reduce__(self) -> tuple[Callable[[], Self], tuple[()]]:
        """Pickle the arguments of the client, its token included; loading opens a new connection."""
        if self._connection.credentials is not None:
            raise TypeError("a client with `credentials` cannot be pickled; make one in each process")
        return partial(type(self), **self._arguments()), ()

    def _set_up(self) -> None:
        """Prepare what one of the clients needs besides."""
        raise NotImplementedError

    def _begin(self, call: Call[ResultT]) -> tuple[ReplyCollector[ResultT], float, Hashable | None]:
        """Return the collector of a call's replies, its timeout, and its lane; None if it is sent by itself."""
        if self._closed:
            raise ValueError("the client is closed")
        limit = self._connection.timeout if call.timeout is None else read_timeout(call.timeout)
        return ReplyCollector(call), limit, self._coalescer.lane(call) if self._coalescer else None

    def _end(self, members: Sequence[Member], error: Exception | None) -> Sequence[Member]:
        """End the calls of a shared request; return them instead if each must be tried alone.

        Args:
            members: calls of the request.
            error: why the request failed, which may be the fault of one of the calls; None if all have their results.
        """
        is_final = isinstance(error, Overloaded) and error.is_final
        if len(members) > 1 and not self._closed and (is_final or isinstance(error, InvalidInput | ServerError)):
            return members
        for member in members:
            member.end(error and self._connection.own_error(error, member.timeout))
        return ()
