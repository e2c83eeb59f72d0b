"""Zero-shot classification, compared with the pipeline of transformers."""

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast, pipeline

from tasks.base import InvalidExamplesError
from tasks.classification import Classification, ClassificationSettings
from tasks.regression import Regression, RegressionSettings
from tasks.zero_shot import create_zero_shot, entailment_label

NLI = ("contradiction", "neutral", "entailment")
TEXTS = ["hello how are you", "a b c", "want " * 60]


def inference(tokenizer, *labels):
    return Classification(tokenizer, ClassificationSettings(max_seq_length=48, labels=labels or NLI))


@pytest.fixture(
    scope="module", params=[NLI, ("ENTAILMENT", "neutral", "contradiction"), ("not_entailment", "entailment")]
)
def reference(request, tokenizer):
    """Random network, and the task for the same labels."""
    torch.manual_seed(0)
    labels = dict(enumerate(request.param))
    config = BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    config.id2label, config.label2id = labels, {label: number for number, label in labels.items()}
    network = BertForSequenceClassification(config).eval()
    with torch.no_grad():
        network.classifier.weight.mul_(100)  # scores that differ
    return network, inference(tokenizer, *request.param)


def predict(network, ranking, texts):
    """Return the predictions of the task, with logits of the network."""
    found = []
    for text, features in zip(texts, ranking.encode(texts), strict=True):
        outputs = []
        for item in features:
            ids = torch.tensor(item.input_ids[None]), torch.tensor(item.token_type_ids[None])
            with torch.no_grad():
                logits = network(input_ids=ids[0], token_type_ids=ids[1]).logits[0].numpy()
            outputs.append({"logits": logits})
        found.append(ranking.decode(text, features, outputs))
    return found


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("template", ["", "how {} you"])
def test_scores_are_those_of_transformers(reference, tokenizer, multi_label, template):
    """Probabilities equal those of the pipeline, for texts that fit and for one that is cut."""
    network, task = reference
    labels = ["want", "are", "a b"]
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        unk_token="[UNK]",
        model_max_length=48,
    )
    theirs = pipeline("zero-shot-classification", model=network, tokenizer=fast)
    options = {"hypothesis_template": template} if template else {}

    ranking = create_zero_shot(task, labels, template=template, multi_label=multi_label)
    found = predict(network, ranking, TEXTS)

    for text, prediction in zip(TEXTS, found, strict=True):
        expected = theirs(text.strip(), labels, multi_label=multi_label, **options)
        assert dict(prediction.ranked()) == pytest.approx(
            dict(zip(expected["labels"], expected["scores"], strict=True)), abs=1e-5
        )
        assert prediction.ranked()[0][0] == expected["labels"][0]


def test_selected_labels(tokenizer):
    """The most likely label is selected, or each that is more likely than not."""
    task = inference(tokenizer)
    logits = [[0, 0, 5], [3, 9, 1], [0, 9, 2]]
    outputs = [{"logits": np.array(row, np.float32)} for row in logits]

    one = create_zero_shot(task, ["a", "b", "c"]).decode("", (), outputs)
    several = create_zero_shot(task, ["a", "b", "c"], multi_label=True).decode("", (), outputs)

    assert one.selected == ("a",)
    assert several.selected == ("a", "c")


def test_errors_name_text_or_label(tokenizer):
    """A text that is empty or too long is named once, and a label whose sentence is too long by its number."""
    task = inference(tokenizer)
    with pytest.raises(InvalidExamplesError) as of_label:
        create_zero_shot(task, ["a", "b " * 40]).encode(["hello"], truncate=True)
    with pytest.raises(InvalidExamplesError) as of_texts:
        create_zero_shot(task, ["a", "a b c"]).encode(["hello", "", "a " * 60], truncate=False)

    assert [(item.index, item.field) for item in of_label.value.invalid] == [(0, "labels[1]")]
    assert "its sentence is too long" in str(of_label.value)
    assert [(item.index, item.field) for item in of_texts.value.invalid] == [(1, "text"), (2, "text")]


def test_models_for_inference(tokenizer):
    """A model needs a label that begins with `entail`."""
    assert entailment_label(inference(tokenizer)) == 2
    assert entailment_label(inference(tokenizer, "no", "yes")) is None
    assert entailment_label(Regression(tokenizer, RegressionSettings())) is None
    with pytest.raises(ValueError, match="no classification of pairs with a label `entailment`"):
        create_zero_shot(inference(tokenizer, "no", "yes"), ["a", "b"])
