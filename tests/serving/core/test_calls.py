import pytest

from serving.core.calls import is_bulk, max_reply_bytes, request_id, trace_context
from serving.core.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("sent", "is_kept"), [("job-7", True), ("x" * 128, True), ("", False), ("x" * 129, False), ("two words", False)]
)
def test_request_ids(sent, is_kept):
    """Valid request ids are kept, and others are replaced by a new one each time."""
    found = [request_id({"x-request-id": sent}) for _ in range(2)]

    assert found == [sent, sent] if is_kept else (found[0] != found[1] and all(found))


def test_trace_context():
    """A call belongs to a trace only with a `traceparent`."""
    assert trace_context({"traceparent": "a", "tracestate": "b", "other": "c"}) == {
        "traceparent": "a",
        "tracestate": "b",
    }
    assert trace_context({"tracestate": "b"}) == {}


@pytest.mark.parametrize(
    ("headers", "expected"), [({}, False), ({"priority": "bulk"}, True), ({"priority": "u=3"}, False)]
)
def test_priorities(headers, expected):
    """Only `bulk` lowers the priority, and values of RFC 9218 are ignored."""
    assert is_bulk(headers) is expected


@pytest.mark.parametrize("read", [is_bulk, max_reply_bytes])
def test_invalid_values(read):
    """Errors repeat the invalid value."""
    with pytest.raises(InvalidRequestError, match="`many`"):
        read({"priority": "many", "max-reply-bytes": "many"})
