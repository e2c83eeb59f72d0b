import pytest

from serving.core.calls import request_id, trace_context


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
