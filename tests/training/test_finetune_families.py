"""Fine-tuning starts from a checkpoint of any family, and writes one that transformers reads alike."""

import numpy as np
import pytest
import torch
import transformers

from tasks import create_task
from tasks.batching import predict
from tasks.classification import ClassificationExample
from tests.families import CONFIGS, create, load_classifier
from tests.toy import write_classification
from training.checkpoint.evaluation import torch_run
from training.checkpoint.reader import load_model, load_tokenizer
from training.checkpoint.task_card import read_task_card
from training.finetuning.run import finetune

TEXTS = ["the big cat", "old red dog the", "a cat near the river"]


@pytest.mark.parametrize("kind", CONFIGS)
def test_fine_tuned_network_of_a_family(kind, finetuning, tmp_path, alone):
    """A masked LM of the family becomes a classifier; transformers gives the same scores from its files."""
    create(kind, "masked-lm", tmp_path / "start")
    train = write_classification(tmp_path / "train.jsonl", 32, 0)
    recipe = finetuning(train, train, checkpoint=tmp_path / "start", num_epochs=1.0, max_seq_length=32)

    directory = finetune(recipe, alone)

    card = read_task_card(directory)
    task = create_task("classification", load_tokenizer(directory), card.settings)
    model = load_model(directory, "classification").eval()
    found = predict(task, [ClassificationExample(text) for text in TEXTS], torch_run(model, task))
    reference = load_classifier(directory)
    assert reference.config.id2label == dict(enumerate(card.settings.labels))
    backend = transformers.PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))
    for text, prediction in zip(TEXTS, found, strict=True):
        ids = torch.tensor([backend(text)["input_ids"]])
        with torch.no_grad():
            scores = reference(input_ids=ids).logits[0].softmax(-1).numpy()
        np.testing.assert_allclose(prediction.scores, scores, atol=1e-5)
