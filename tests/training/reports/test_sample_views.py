"""Predictions in the report of a run."""

import numpy as np
import pytest

from tasks.masked_lm import ClozeExample, MaskedLM, MaskedLMSettings, MaskPrediction, log_softmax
from tasks.tokenizer import Tokenizer
from tests.toy_tokenizers import KINDS
from training.reports.sample_views import SHOWN


@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe"])
def test_texts_are_split_at_the_masks_of_the_tokenizer(kind):
    """The report shows predictions in place of the masks, whatever the tokenizer calls them."""
    task = MaskedLM(Tokenizer(KINDS[kind]()), MaskedLMSettings())
    mask, token = task.tokenizer.mask_token, task.tokenizer.token(20)
    logits = np.zeros((2, task.tokenizer.vocab_size), np.float32)
    logits[:, 20] = 9

    items, _ = SHOWN["masked-lm"](
        task, [ClozeExample(f"The {mask} sees a {mask}.", (token, token))], [MaskPrediction(log_softmax(logits))]
    )

    assert items[0]["texts"] == ["The ", " sees a ", "."]
    assert [item["verdict"] for item in items[0]["masks"]] == ["right", "right"]
    assert items[0]["mask"] == mask
