from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bertline
from bertline import AsyncClient, Client, InvalidInput, OtherSpace, ServerError, TextsCut
from bertline._batches import batches
from bertline._convert import MAX_REQUEST_BYTES
from bertline.results import Timings, Usage
from bertline.testing import FakeModel, FakeServer, vector
from bertline.v1 import encoder_pb2 as pb
from tests.clients.command import Embed, both_clients, embed_async, embed_sync

METHODS = (
    "embed",
    "embed_sparse",
    "embed_tokens",
    "classify",
    "regress",
    "choose",
    "answer",
    "rerank",
    "tag",
    "fill_mask",
    "zero_shot",
    "tokenize",
    "models",
    "model",
    "health",
)
words = st.text(min_size=1).filter(str.strip)


@pytest.fixture(scope="module")
def shared_target() -> Iterator[str]:
    with FakeServer() as server:
        yield server.target


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda client: pickle.loads(pickle.dumps(client))])
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_copies_are_new_clients(kind: Any, again: Callable[[Any], Any], shared_target: str) -> None:
    """A client that is copied or pickled, also after its end, is a new one with the same arguments."""
    client = kind(shared_target, timeout=7, batch_size=3, token="a", priority="bulk", coalesce=False)

    async def use(client: Any) -> Any:
        found = client.embed(["a text"])
        vectors = found if kind is Client else await found
        closing = client.close()
        if kind is AsyncClient:
            await closing
        return vectors

    expected = asyncio.run(use(client))
    made = again(client)

    assert type(made) is kind
    assert made._connection == client._connection
    assert made._coalescer is None
    np.testing.assert_array_equal(asyncio.run(use(made)), expected)


def test_a_client_with_credentials_is_copied_but_not_pickled() -> None:
    """Credentials are of this process; the error says what to do."""
    with Client(credentials=grpc.ssl_channel_credentials()) as client:
        with copy.deepcopy(client) as made:
            assert made._connection.credentials is client._connection.credentials
        with pytest.raises(TypeError, match="a client with `credentials` cannot be pickled; make one in each process"):
            pickle.dumps(client)


def test_embed_returns_a_writable_row_for_each_text(client: Client) -> None:
    """Vectors are float32 with one writable row a text."""
    vectors = client.embed(["one", "two"])
    vectors *= 2

    assert vectors.dtype == np.float32
    assert np.array_equal(vectors, 2 * np.array([vector("one"), vector("two")]))


def test_no_inputs_send_nothing(client: Client, server: FakeServer) -> None:
    """An empty list returns an empty result without a call."""
    assert client.embed([]).shape == (0, 0)
    assert client.classify([]) == []
    assert client.answer([]) == []
    assert client.fill_mask([]) == []
    assert client.regress([]) == client.choose([]) == client.tag([]) == client.tokenize([]) == []
    assert server.requests == []


def test_prompts_of_the_model(client: Client, server: FakeServer) -> None:
    """A prompt of the model stands before each text: the named one, or its default one, or none."""
    settings = {"prompts": {"query": "find: ", "document": ""}, "default_prompt_name": "query"}
    server.models = [FakeModel(manifest={"settings": settings})]

    found = [client.embed(["owl"], prompt_name=name)[0] for name in (None, "query", "document", "")]

    assert [item.tolist() for item in found] == [
        vector(text).tolist() for text in ("find: owl", "find: owl", "owl", "owl")
    ]
    with pytest.raises(ValueError, match="unknown input_type: `passage` \\(one of: query, document\\)"):
        client.embed(["owl"], input_type="passage")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"unknown prompt: `passage` \(prompts of this model: query, document\)"):
        client.embed(["owl"], prompt_name="passage")


def test_one_label_is_selected(client: Client) -> None:
    """The most probable label is the selected one."""
    (result,) = client.classify(["four"])
    (cut,) = client.classify(["four"], top_k=1)

    assert result.selected == cut.selected == (result.label,)
    assert not result.multi_label


def test_any_number_of_labels_is_selected() -> None:
    """A multi-label model gives any number of labels, none included, and scores that do not sum to 1."""
    model = FakeModel(task="classification", labels=("toxic", "insult", "threat"), multi_label=True)
    with FakeServer([model]) as fake, Client(fake.target) as connected:
        results = connected.classify([f"text {number}" for number in range(50)])
        best = connected.classify([f"text {number}" for number in range(50)], top_k=1)
        described = connected.model()

    assert described.multi_label
    assert all(result.multi_label for result in results)
    assert [result.selected for result in best] == [result.selected for result in results]
    assert any(len(result.labels) == 1 for result in best)
    assert {len(result.selected) for result in results} == {0, 1, 2, 3}
    for result in results:
        assert result.selected == tuple(item.label for item in result.labels if item.score >= 0.5)


def test_answer_returns_spans_of_the_context(client: Client) -> None:
    """Offsets are positions in Python strings, and the text of "no answer" is empty."""
    context = "🦉 In Zürich, Zürich"
    found, nothing = client.answer([("Where is Zürich?", context), ("Where is Paris?", context)], top_k=2)

    assert found.text == "Zürich"
    assert [context[span.start : span.end] for span in found.spans] == ["Zürich", "Zürich"]
    assert found.score == 0.75
    assert (nothing.has_answer, nothing.text, nothing.score) == (False, "", 0.875)


def test_usage_counts_truncated_tokens(client: Client, server: FakeServer) -> None:
    """A usage counts tokens and truncated inputs over all requests of a call."""
    server.models = [FakeModel(max_seq_length=8)]
    usage = Usage()
    client.embed(["short", "a text of more words than eight", *["short"] * 4], truncate=True, usage=usage)

    assert usage.num_tokens == [3, 8, 3, 3, 3, 3]
    assert usage.num_truncated == [0, 1, 0, 0, 0, 0]
    assert usage.truncated == [1]
    assert usage.timings == [Timings(2**-10, 2**-9, 2**-8)] * 2


def test_unrequested_truncation_gives_a_warning(client: Client, server: FakeServer, recwarn: Any) -> None:
    """A warning counts inputs that the model truncates by default, unless the call sets `truncate` or a usage."""
    server.models = [FakeModel(max_seq_length=8, manifest={"truncate": True})]
    texts = ["short", "a text of more words than eight", "another text of more words than eight"]
    client.embed(texts, truncate=True)
    client.embed(texts, usage=Usage())
    client.embed(texts[:1])
    client.tokenize(texts)

    assert not recwarn.list
    with pytest.warns(TextsCut, match="`fake/1` truncated 2 inputs, as in its evaluation") as warned:
        client.embed(texts)

    assert warned[0].filename == __file__
    with pytest.raises(InvalidInput, match="too long"):
        client.embed(texts, truncate=False)


def test_a_call_that_fails_counts_nothing(server: FakeServer) -> None:
    """A failed call adds nothing to its usage, even if some of its requests succeeded."""
    usage = Usage()
    server.fail("INTERNAL", after=2)
    with Client(server.target, batch_size=1, num_in_flight=1) as client, pytest.raises(ServerError):
        client.embed(["a", "b", "c"], usage=usage)

    assert usage == Usage()


@settings(max_examples=15)
@given(texts=st.lists(words, max_size=40), batch_size=st.integers(1, 9), num_in_flight=st.integers(1, 5))
def test_results_come_in_order(shared_target: str, texts: list[str], batch_size: int, num_in_flight: int) -> None:
    """Result i belongs to text i for any split of the list, in both clients."""
    vectors = embed_sync(shared_target, texts, batch_size=batch_size, num_in_flight=num_in_flight)
    others = embed_async(shared_target, texts, batch_size=batch_size, num_in_flight=num_in_flight)

    assert vectors.tolist() == [vector(text).tolist() for text in texts]
    assert np.array_equal(others, vectors)


@given(sizes=st.lists(st.integers(0, 30)), max_items=st.integers(1, 5), max_bytes=st.integers(1, 40))
def test_batches_keep_their_limits(sizes: list[int], max_items: int, max_bytes: int) -> None:
    """Batches hold all items in order within their limits, and no two neighbours fit into one."""
    parts = list(batches(sizes, int, max_items=max_items, max_bytes=max_bytes))

    assert [size for part in parts for size in part] == sizes
    assert all(parts)
    assert all(len(part) <= max_items and (sum(part) <= max_bytes or len(part) == 1) for part in parts)
    for part, following in pairwise(parts):
        assert len(part) == max_items or sum(part) + following[0] > max_bytes


def test_large_texts_are_split_by_bytes(client: Client, server: FakeServer) -> None:
    """Requests stay below their size limit, counted in UTF-8."""
    client.embed(["ä" * 40_000] * 4)

    assert [len(request.texts) for request in server.requests] == [2, 2]
    assert all(request.ByteSize() < MAX_REQUEST_BYTES for request in server.requests)


@both_clients
def test_requests_are_in_flight_together_up_to_the_limit(server: FakeServer, embed: Embed) -> None:
    """The client sends up to `num_in_flight` requests at the same time, and never more."""
    server.delay(0.1)
    embed(server.target, [str(number) for number in range(9)], batch_size=1, num_in_flight=3)

    assert server.max_in_flight == 3


def test_threads_share_a_client(client: Client) -> None:
    """Calls from several threads get their own results."""
    results: dict[int, np.ndarray] = {}

    def embed(number: int) -> None:
        results[number] = client.embed([f"{number} {item}" for item in range(10)])

    threads = [threading.Thread(target=embed, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for number, vectors in results.items():
        assert vectors.tolist() == [vector(f"{number} {item}").tolist() for item in range(10)]


def test_async_client_may_be_made_before_the_event_loop(server: FakeServer) -> None:
    """An AsyncClient belongs to the event loop of its first call."""
    client = AsyncClient(server.target, batch_size=2)

    async def use() -> list[Any]:
        results = await asyncio.gather(
            client.embed(["a", "b", "c"]), client.answer([("Is it here?", "here")]), client.models()
        )
        await client.close()
        return results

    vectors, answers, models = asyncio.run(use())

    assert (vectors.shape, answers[0].text, models[0].name) == ((3, 8), "here", "fake")


def test_an_async_client_belongs_to_one_event_loop(server: FakeServer) -> None:
    """An AsyncClient refuses calls from a second event loop, but can be closed there."""
    client = AsyncClient(server.target)

    async def embed() -> None:
        await client.embed(["a"])

    asyncio.run(embed())
    with pytest.raises(ValueError, match="belongs to the event loop of its first call"):
        asyncio.run(embed())
    asyncio.run(client.close())

    assert len(server.calls) == 1


@pytest.mark.parametrize("method", [*METHODS, "close"])
def test_both_clients_have_the_same_methods(method: str) -> None:
    """AsyncClient has the methods of Client with the same signatures, and one docstring for both."""
    synchronous, asynchronous = getattr(Client, method), getattr(AsyncClient, method)

    assert inspect.signature(synchronous) == inspect.signature(asynchronous)
    assert inspect.iscoroutinefunction(asynchronous)
    assert asynchronous.__doc__ in (f"See `Client.{method}`.", synchronous.__doc__)
    if "Args:" in synchronous.__doc__:
        described = f"{Client.__doc__}{synchronous.__doc__}"
        assert [name for name in inspect.signature(synchronous).parameters if f" {name}:" not in described] == ["self"]


def test_both_clients_are_made_alike() -> None:
    """The constructors and the public names of both clients are the same."""
    public = [{name for name in dir(kind) if not name.startswith("_")} for kind in (Client, AsyncClient)]

    assert inspect.signature(Client) == inspect.signature(AsyncClient)
    assert public[0] == public[1] == {*METHODS, "close"}


def test_everything_public_can_be_imported() -> None:
    """`__all__` names everything public, and other names raise AttributeError."""
    assert all(getattr(bertline, name).__name__ == name for name in bertline.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = bertline.nonsense


def test_bulk_calls_carry_their_priority(server: FakeServer) -> None:
    """Bulk calls carry their priority in the metadata, and others carry none."""
    with Client(server.target) as client, Client(server.target, priority="bulk") as bulk:
        client.embed(["a"])
        bulk.embed(["b"])

    assert [call.metadata.get("priority") for call in server.calls if call.method == "Embed"] == [None, "bulk"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": "http://localhost:50051"}, "without `http://`: write `localhost:50051`"),
        ({"target": "https://example.org"}, "write `example.org:port`, .*; for TLS give `credentials` .*--tls-ca"),
        ({"target": "127.0.0.1:117636"}, "the port of a target must be 1 to 65535, not 117636"),
        ({"target": "ipv4:10.0.0.1:50051,10.0.0.2:70000"}, "not 70000"),
        ({"target": ""}, "host:port"),
        ({"batch_size": 0}, "batch_size"),
        ({"num_in_flight": 0}, "num_in_flight"),
        ({"priority": "low"}, r"unknown priority: `low` \(one of: interactive, bulk\)"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, Any], message: str) -> None:
    """An argument out of range is refused by the constructor."""
    with pytest.raises(ValueError, match=message):
        Client(**arguments)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 1.5),
        ("num_in_flight", "4"),
        ("check_health", "no"),
        ("target", None),
    ],
)
def test_arguments_of_another_type_are_refused(name: str, value: Any) -> None:
    """An argument of a wrong type is refused by its name."""
    with pytest.raises(TypeError, match=f"`{name}` must be .*: `{value!r}`"):
        Client(**{name: value})


def test_numbers_of_numpy_are_numbers(server: FakeServer) -> None:
    """Numbers and booleans of NumPy are valid arguments."""
    with Client(server.target, batch_size=np.int64(2)) as client:
        assert client.embed(["a", "b", "c"], dimensions=np.int64(4), truncate=np.bool_(True)).shape == (3, 4)

    assert {len(request.texts) for request in server.requests} == {1, 2}


@pytest.mark.parametrize("timeout", [0, -1, 1e10, float("inf"), float("nan"), "5"])
def test_invalid_timeouts_are_refused(server: FakeServer, timeout: Any) -> None:
    """An invalid timeout is refused by the constructor, and by a call before it sends anything."""
    error = TypeError if isinstance(timeout, str) else ValueError

    with pytest.raises(error, match="`timeout` must be"):
        Client(server.target, timeout=timeout)
    with Client(server.target) as client, pytest.raises(error, match="`timeout` must be"):
        client.models(timeout=timeout)

    assert server.calls == []


@pytest.mark.parametrize(
    "target",
    [
        "localhost:65535",
        "[::1]:50051",
        "fe80::0",
        "dns:///localhost:50051",
        "ipv4:10.0.0.1:50051,10.0.0.2:50051",
        "unix:/run/bertline:70000",
    ],
)
def test_targets_of_grpc_are_accepted(target: str) -> None:
    """Hosts with ports, lists of hosts, and sockets are valid targets."""
    Client(target).close()


class Frame:
    """Table like those of pandas, which iterates over column names."""

    columns = ("text",)

    def keys(self) -> tuple[str, ...]:
        return self.columns

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "embed": lambda client, values: client.embed(values),
    "classify": lambda client, values: client.classify(values),
    "tag": lambda client, values: client.tag(values),
    "targets": lambda client, values: client.fill_mask(["[MASK]"], targets=values),
}
"""Calls of each kind of argument that takes a list."""


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"query": "text"}, "must be a list, not dict, whose keys alone"),
        (Frame(), "not Frame, whose keys alone"),
        ({"a", "b"}, "not set, which has no order"),
        ("text", "must be a list, not one string"),
    ],
)
def test_inputs_must_be_lists(server: FakeServer, name: str, values: Any, message: str) -> None:
    """Mappings, sets, strings and bytes are refused as lists, before any call."""
    with Client(server.target) as client, pytest.raises(TypeError, match=message):
        CALLS[name](client, values)

    assert server.requests == []


@pytest.mark.parametrize(
    "values", [(part for part in (1, 2)), iter([b"a"]), np.array([1, 2]), [["a"]], [{"text": "a"}]]
)
def test_items_are_strings(client: Client, values: Any) -> None:
    """Each item of any iterable must be a string."""
    with pytest.raises(TypeError, match="input 0, text: expected a string"):
        client.embed(values)


@pytest.mark.parametrize(
    "values", [("a", "b"), iter(["a", "b"]), np.array(["a", "b"]), {"a": 1, "b": 2}.keys(), {1: "a", 2: "b"}.values()]
)
def test_ordered_iterables_are_lists(client: Client, values: Any) -> None:
    """Any ordered iterable of strings is a list, also the keys of a mapping."""
    assert client.embed(values).shape == (2, 8)


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (lambda client: client.embed(["a", None]), TypeError, "input 1, text: expected a string, got NoneType"),
        (lambda client: client.answer(("question", "context")), TypeError, "input 0: expected a pair, got str"),
        (lambda client: client.answer([("question", 1)]), TypeError, "input 0, contexts: expected a list of strings"),
        (lambda client: client.answer([("a", "b"), ("a", "\ud800")]), InvalidInput, "input 1, context: .*surrogate"),
        (lambda client: client.choose(["question"]), TypeError, "expected a question with choices, got str"),
        (lambda client: client.tag(["a", ["b", 1]]), TypeError, r"input 1, words\[1\]: expected a string"),
        (lambda client: client.embed(["a"], dimensions=0), ValueError, "`dimensions` must be at least 1"),
        (lambda client: client.embed(["a"], model="\ud800"), InvalidInput, "model: contains a lone surrogate"),
        (lambda client: client.embed(["a"], pooling="median"), ValueError, "unknown pooling: `median`"),
        (lambda client: client.classify(["a"], top_k="3"), TypeError, "`top_k` must be a whole number: `'3'`"),
        (lambda client: client.embed(["a"], truncate="no"), TypeError, "`truncate` must be True or False: `'no'`"),
        (lambda client: client.embed_tokens(["a"], format="int8"), ValueError, "unknown format: `int8` .*, float16"),
    ],
)
def test_misuse_raises_before_anything_is_sent(
    client: Client, server: FakeServer, use: Callable[[Client], Any], error: type[Exception], message: str
) -> None:
    """A wrong call raises an error that states what to write, before any request."""
    with pytest.raises(error, match=message):
        use(client)

    assert server.requests == []


ONE, OTHER = "1" * 16, "2" * 16


@both_clients
@pytest.mark.parametrize("space", [OTHER, ""])
def test_vectors_of_another_space_are_refused(embed: Embed, server: FakeServer, space: str) -> None:
    """A client with a space accepts its vectors alone, also in the middle of a call."""
    server.models = [FakeModel(space=ONE)]
    assert len(embed(server.target, ["a"] * 3, space=ONE)) == 3

    server.models = [FakeModel(space=space)]
    with pytest.raises(OtherSpace, match=f"`fake/1` gives vectors of space `{space or 'unknown'}`, not of `{ONE}`"):
        embed(server.target, ["a"] * 3, space=ONE)
    assert server.requests[-1].model.space == ONE
    with pytest.raises(ValueError, match="`space` must be 16 hexadecimal digits"):
        embed(server.target, ["a"], space="embed")


def test_other_methods_have_no_space(server: FakeServer) -> None:
    """The space of a client is for vectors; `usage` and the model state the space of any client."""
    server.models = [FakeModel(space=ONE)]
    with Client(server.target, space=OTHER) as pinned, Client(server.target) as client:
        assert len(pinned.classify(["a"])) == len(pinned.tokenize(["a"])) == 1
        client.embed(["a"], usage=(usage := Usage()))

        assert usage.space == client.model().space == ONE


@both_clients
def test_space_that_changes_in_a_call(embed: Embed, server: FakeServer) -> None:
    """Vectors of two spaces are never joined, even if nobody asked for one of them."""

    def reply(request: pb.EmbedRequest) -> pb.EmbedReply:
        model = pb.ModelRef(name="fake", version="1", space=ONE if "a" in request.texts else OTHER)
        return pb.EmbedReply(model=model, vectors=bytes(4 * len(request.texts)), dim=1)

    server.reply("Embed", reply)

    with pytest.raises(ServerError, match="replaced between two requests"):
        embed(server.target, ["a", "b"], batch_size=1)
