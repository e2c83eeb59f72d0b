"""Requests whose options or inputs an operation cannot use."""

import grpc
import pytest

from bertline.v1 import encoder_pb2 as pb

PAIR = [{"query": "who sees the dog ?", "documents": ["the cat sees the old dog ."]}]
LABELS = {"texts": ["a small bird"], "labels": ["cat", "dog"]}
WRONG = [
    ("EmbedSparse", {"texts": ["a", " "]}, "texts[1]: empty text"),
    ("EmbedSparse", {"texts": ["a", "cat " * 60]}, "texts[1]: text too long: `62` tokens"),
    ("EmbedSparse", {"prompt_name": "none"}, "prompt_name: unknown prompt: `none` (prompts of this model: query)"),
    ("EmbedSparse", {"prompt_name": "query", "input_type": 1}, "input_type: set together with `prompt_name`"),
    ("EmbedSparse", {"input_type": 9}, "input_type: unknown: 9"),
    ("EmbedSparse", {"model": {"name": "filler"}}, "filler/1 (masked-lm) does not support the task `sparse-embedding`"),
    ("EmbedTokens", {"format": 2}, "format: unsupported: 2 (0 for float32, 1 for float16)"),
    ("ZeroShot", {"labels": ["cat"]}, "labels: too few: `1`; give at least 2"),
    ("ZeroShot", {"labels": ["cat", " "]}, "labels[1]: blank"),
    ("ZeroShot", {"labels": ["cat", "dog", "cat"]}, "labels: given twice: `cat`"),
    ("ZeroShot", {"labels": ["cat", "the big dog " * 10]}, "labels[1]: its sentence is too long"),
    ("ZeroShot", {"template": "{} {}"}, "template: needs one `{}`"),
    ("ZeroShot", {"template": "{}" + "a" * 2000}, "template: longer than 1024 characters"),
    ("ZeroShot", {"labels": [str(n) for n in range(9000)]}, "too many labels: `9000` (maximum `8192`)"),
    ("ZeroShot", {"labels": ["a" * 600_000, "b" * 600_000]}, "labels: too long with the template: `1200038`"),
    ("ZeroShot", {"model": {"name": "scorer"}}, "scorer/1 (regression) cannot classify by labels of the request"),
    ("ZeroShot", {"texts": ["cat"] * 5000}, "too many pairs of text and label: `10000`"),
    ("Rerank", {"inputs": [{"documents": ["cat"]}]}, "inputs[0].query: empty text"),
    ("Rerank", {"inputs": [{"query": "who"}]}, "inputs[0].documents: empty; at least one is needed"),
    ("Rerank", {"inputs": [{"query": "who", "documents": ["cat", " "]}]}, "inputs[0].documents[1]: empty text"),
    (
        "Rerank",
        {"model": {}},
        "several models are loaded for the task `rerank`; name one: scorer/1 (regression), tokens/1",
    ),
    ("Rerank", {"model": {"name": "embedder"}}, "embedder/1 (embedding) cannot rank documents"),
    ("Rerank", {"model": {"name": "classifier"}}, "`label` is missing; name the label that means that a document fits"),
    ("Rerank", {"model": {"name": "classifier"}, "label": "perhaps"}, "`label` is unknown: `perhaps`; name the label"),
    ("Rerank", {"label": "entailment"}, "`label` is for models with labels, not for `regression`; leave it out"),
]
DEFAULTS = {"ZeroShot": LABELS, "Rerank": {"inputs": PAIR, "model": {"name": "scorer"}}}


@pytest.mark.parametrize(("method", "changes", "message"), WRONG)
def test_wrong_requests(server, method, changes, message):
    """Errors are INVALID_ARGUMENT and name the field, and what is wrong or what to do."""
    request = getattr(pb, f"{method}Request")(**DEFAULTS.get(method, {"texts": ["a"]}) | changes)
    call = getattr(server.stub, method).future(request)

    assert call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert message in call.details()
