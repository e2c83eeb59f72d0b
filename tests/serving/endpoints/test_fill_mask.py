"""Targets of FillMask, for tokenizers that write spaces into tokens."""

from types import SimpleNamespace

import pytest

from bertline.v1 import encoder_pb2 as pb
from serving.core.errors import InvalidRequestError
from serving.endpoints.fill_mask import FillMask
from tasks.text.tokenizer import Tokenizer
from tests.toy_tokenizers import byte_bpe, wordpiece


def with_token(token):
    """Return a tokenizer with a token more."""
    backend = wordpiece()
    backend.add_tokens([token])
    return backend


@pytest.mark.parametrize(
    ("backend", "target", "reason"),
    [
        (byte_bpe, "dog", "not in the vocabulary; did you mean `Ġdog`?"),
        (byte_bpe, " dog", "not in the vocabulary; did you mean `Ġdog`?"),
        (byte_bpe, "unheard", "not in the vocabulary"),
        (lambda: with_token("▁owl"), "owl", "not in the vocabulary; did you mean `▁owl`?"),
        (wordpiece, " cat", "not in the vocabulary; did you mean `cat`?"),
    ],
)
def test_targets_without_their_space_get_a_hint(backend, target, reason):
    """The error names the token of the word behind a space."""
    model = SimpleNamespace(task=SimpleNamespace(tokenizer=Tokenizer(backend())))

    with pytest.raises(InvalidRequestError) as caught:
        FillMask().task_for(pb.FillMaskRequest(targets=[target]), model)

    assert [(item.field, item.reason) for item in caught.value.violations] == [("targets[0]", reason)]
