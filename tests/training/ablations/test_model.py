"""Tests of heads over combined hidden states and a BiLSTM with a frozen encoder, against transformers and numpy."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from export.source import read_source
from tasks.batching import predict
from tests.toy import write_classification, write_spans
from training.ablations.model import AblationConfig, change_config, make_config
from training.checkpoint import create_model, load_model, read_config
from training.data.columns import Columns
from training.data.labelled import read_examples
from training.evaluate import load_for_evaluation
from training.finetune import finetune
from training.finetuning.recipe import FinetuneRecipe
from training.loop.optimizer import create_optimizer
from training.loop.run_directory import read_metrics
from training.model.architectures import ARCHITECTURES
from training.model.config import EncoderConfig
from training.model.encoder import Encoder
from training.task_card import read_task_card
from training.weights import read_weights

SIZES = {"vocab_size": 50, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
FAST = {"learning_rate": 1e-2, "global_batch_size": 16, "micro_batch_size": 16, "dtype": "fp32", "dropout": 0.0}


def shape(**fields):
    return make_config(num_hidden_layers=3, **SIZES, **fields)


def arrays(lengths=(9, 5, 1)):
    """Return a padded batch."""
    generator = torch.Generator().manual_seed(0)
    input_ids = torch.randint(5, 50, (len(lengths), max(lengths)), generator=generator)
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    return input_ids * mask, mask, torch.zeros_like(input_ids)


def write_tagging(path, num_rows, seed):
    """Write sentences in which a colour is tagged unless it follows an article."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(num_rows):
        words = [str(word) for word in rng.choice(["the", "old", "red", "green"], 8)]
        after = zip(words, ["", *words], strict=False)
        tags = ["B-C" if word in ("red", "green") and before != "the" else "O" for word, before in after]
        rows.append({"tokens": words, "tags": tags})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


DATA = {
    "classification": (write_classification, "a.jsonl", "accuracy"),
    "tagging": (write_tagging, "b.jsonl", "f1"),
    "spans": (write_spans, "c.json", "f1"),
}


def recipe(task, checkpoint, folder, num_rows=200, **changes):
    write, name, _ = DATA[task]
    train, dev = (write(folder / f"{seed}-{name}", num_rows, seed) for seed in (0, 1))
    task_fields = {"max_query_length": 8} if task == "spans" else {}
    fields = {"max_seq_length": 32, "num_epochs": 1, **task_fields, **FAST, **changes}
    run_dir = folder / "run"
    return FinetuneRecipe(task=task, checkpoint=checkpoint, train=(train,), dev=(dev,), run_dir=run_dir, **fields)


def transformers_states(model):
    """Return all hidden states of transformers' BERT with the same weights."""
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32
    )
    reference = transformers.BertModel(config, add_pooling_layer=False).eval()
    weights = {
        name.removeprefix("bert."): value
        for name, value in ARCHITECTURES["bert"].to_hugging_face(model.state_dict()).items()
    }
    missing, _ = reference.load_state_dict(weights, strict=False)
    assert not missing
    input_ids, mask, types = arrays()
    with torch.no_grad():
        outputs = reference(input_ids, attention_mask=mask, token_type_ids=types, output_hidden_states=True)
    return [state.numpy() for state in outputs.hidden_states]


@pytest.mark.parametrize(
    ("layers", "combination"),
    [
        ((-1,), "concat"),
        ((0,), "concat"),
        ((1,), "concat"),
        ((-1, -2), "concat"),
        ((0, 3), "sum"),
        ((1, -1), "weighted"),
    ],
)
def test_states_are_those_of_transformers_combined(layers, combination):
    """Combined states equal transformers' `hidden_states`, concatenated, added or averaged with softmax weights."""
    torch.manual_seed(0)
    model = create_model("tagging", shape(state_layers=layers, state_combination=combination)).eval()
    if combination == "weighted":
        model.bert.states.weights.data = torch.tensor([0.3, -1.0])
    with torch.no_grad():
        ours = model.bert(*arrays()).numpy()

    states = [transformers_states(model)[layer] for layer in layers]
    mask = arrays()[1].numpy().astype(bool)
    softmax = np.exp([0.3, -1.0]) / np.exp([0.3, -1.0]).sum()
    expected = {
        "concat": lambda: np.concatenate(states, axis=-1),
        "sum": lambda: sum(states),
        "weighted": lambda: sum(weight * state for weight, state in zip(softmax, states, strict=True)),
    }[combination]()
    assert ours.shape[-1] == model.config.output_size == expected.shape[-1]
    np.testing.assert_allclose(ours[mask], expected[mask], atol=1e-5)


def test_bilstm_reads_no_padding():
    """A sequence in a padded batch gets the states that PyTorch's LSTM gives it alone."""
    model = create_model("tagging", shape(bilstm_size=12)).eval()
    input_ids, mask, types = arrays()
    with torch.no_grad():
        batched = model.bert(input_ids, mask, types)
        for row, length in enumerate(mask.sum(-1).tolist()):
            alone = without_lstm(model)(input_ids[row : row + 1, :length], None, types[row : row + 1, :length])
            expected = model.bert.states.lstm(alone)[0]

            torch.testing.assert_close(batched[row : row + 1, :length], expected, atol=1e-6, rtol=1e-5)


def without_lstm(model):
    """Return the encoder of a model without the layers on top."""
    plain = create_model("tagging", change_config(model.config, {"bilstm_size": 0})).eval()
    plain.bert.load_state_dict(
        {name: value for name, value in model.bert.state_dict().items() if not name.startswith("states.")}
    )
    return plain.bert


def test_pooled_output_takes_both_ends_of_a_bilstm():
    """The pooled output combines the last forward state and the first backward state of a BiLSTM."""
    model = create_model("classification", shape(bilstm_size=12)).eval()
    input_ids, mask, types = arrays()
    with torch.no_grad():
        hidden = model.bert(input_ids, mask, types)
        pooled = model.bert.pool(hidden, mask)
        ends = [
            torch.cat([row[length - 1, :12], row[0, 12:]]) for row, length in zip(hidden, mask.sum(-1), strict=True)
        ]

        torch.testing.assert_close(pooled, torch.tanh(model.bert.pooler(torch.stack(ends))))


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, EncoderConfig),
        ({"state_layers": (3,), "state_combination": "sum"}, EncoderConfig),
        ({"direction": "left-to-right"}, AblationConfig),
        ({"state_layers": (-2,)}, AblationConfig),
        ({"bilstm_size": 4}, AblationConfig),
    ],
)
def test_only_networks_that_differ_are_ablations(fields, kind):
    """`make_config` returns a plain config for a network that is a BERT."""
    config = shape(**fields)

    assert type(config) is kind
    assert change_config(config, {"direction": "both", "state_layers": (-1,), "bilstm_size": 0}) == shape()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_frozen_encoder_has_neither_gradients_nor_dropout(dtype):
    """A frozen encoder gets no gradients and no dropout, also in bf16."""
    model = create_model("tagging", shape(state_layers=(-1, -2), state_combination="weighted", bilstm_size=8))
    model.bert.freeze()
    model.train()

    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        states = model.bert(*arrays())
        logits = model(*arrays())["logits"]
    assert model.dropout.training
    assert torch.equal(states, model.bert(*arrays())) or dtype == torch.bfloat16
    logits.float().sum().backward()
    trained = {name for name, value in model.named_parameters() if value.grad is not None}
    assert {name.split(".")[0] for name in trained} == {"bert", "classifier"}
    assert all(name.startswith(("classifier.", "bert.states.")) for name in trained)
    assert all(torch.isfinite(value.grad).all() for value in model.parameters() if value.grad is not None)
    in_optimizer = sum(
        len(g["params"]) for g in create_optimizer(model, weight_decay=0.1, betas=(0.9, 0.99)).param_groups
    )
    assert in_optimizer == len(trained)


def test_unused_layers_do_not_train():
    """Unused layers do not train, because DDP would wait for their gradients."""
    model = create_model("tagging", shape(state_layers=(1,)))
    model(*arrays())["logits"].sum().backward()

    for name, value in model.named_parameters():
        assert (value.grad is not None) == value.requires_grad, name

    assert not any(value.requires_grad for value in model.bert.layers[1:].parameters())


@pytest.mark.parametrize("task", ["classification", "tagging", pytest.param("spans", marks=pytest.mark.slow)])
def test_features_of_a_frozen_encoder_learn(task, checkpoint, tmp_path, alone):
    """A BiLSTM over a frozen encoder beats the baseline, keeps its weights, and loads with the same scores."""
    settings = recipe(task, checkpoint, tmp_path, frozen=True, layers=(-1, -2), bilstm=32, num_epochs=6)

    path = finetune(settings, alone)

    scores, metric = read_task_card(path).scores, DATA[task][2]
    baseline = next(row for name, row in scores.items() if name != "dev")
    assert scores["dev"][metric] > max(0.7, baseline[metric])
    before, after = read_weights(checkpoint), read_weights(path)
    encoder = [name for name in before if name.startswith(("bert.embeddings.", "bert.encoder."))]
    assert len(encoder) > 10
    assert all(torch.equal(before[name], after[name]) for name in encoder)
    loaded, run = load_for_evaluation(path)
    dev = read_examples(task, settings.dev, columns=Columns(), tokenizer=loaded.tokenizer)
    assert loaded.score(dev, predict(loaded, dev, run)) == pytest.approx(scores["dev"])


def test_frozen_alone_stays_a_bert(checkpoint, tmp_path, alone):
    """A checkpoint of a frozen encoder keeps transformers' layout and outputs."""
    path = finetune(recipe("tagging", checkpoint, tmp_path, 32, frozen=True), alone)

    reference = transformers.AutoModelForTokenClassification.from_pretrained(path).eval()
    ours = load_model(path, "tagging").eval()
    input_ids, mask, types = arrays()
    with torch.no_grad():
        logits = reference(input_ids, attention_mask=mask, token_type_ids=types).logits
        torch.testing.assert_close(
            ours(input_ids, mask, types)["logits"][mask == 1], logits[mask == 1], atol=1e-5, rtol=0
        )


@pytest.mark.slow
def test_ablations_are_refused_by_transformers_and_export(checkpoint, tmp_path, alone):
    """transformers and the export refuse an ablation; fine-tuning continues from it, with or without its BiLSTM."""
    first = finetune(recipe("classification", checkpoint, tmp_path, 32, layers=(1, 2), combine="sum", bilstm=8), alone)

    assert {name: read_config(first)[name] for name in ("model_type", "state_layers", "state_combination")} == {
        "model_type": "bert-ablation",
        "state_layers": [1, 2],
        "state_combination": "sum",
    }
    with pytest.raises(ValueError, match="bert-ablation"):
        transformers.AutoModelForSequenceClassification.from_pretrained(first)
    with pytest.raises(
        ValueError, match=r"cannot export an ablation of BERT: .* fine-tune it without --layers, --combine"
    ):
        read_source(first)
    folder = tmp_path / "next"
    folder.mkdir()
    again = recipe("classification", first, folder, 32)
    assert isinstance(load_model(finetune(again, alone), "classification").bert.states.lstm, nn.LSTM)
    plain = finetune(replace(again, run_dir=folder / "plain", layers=(-1,), bilstm=0), alone)
    assert read_config(plain)["model_type"] == "bert"
    assert type(load_model(first, "masked-lm", new_head=True).bert) is Encoder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": (3,)}, r"state_layers must be numbers from 0 .* to 2 .* or from -1 down to -3: `3`"),
        ({"layers": (-1, 2)}, "names a layer twice"),
        ({"combine": "sum"}, "needs several --layers"),
        ({"bilstm": -1}, "--bilstm must be at least 0: `-1`"),
        ({"frozen": True, "unfreeze_every": 2}, "a frozen encoder has no layers that train"),
    ],
)
def test_mistakes_get_one_line(changes, message, checkpoint, tmp_path, alone):
    """Impossible settings are refused before any training."""
    with pytest.raises(ValueError, match=message):
        finetune(recipe("classification", checkpoint, tmp_path, 32, **changes), alone)


@pytest.mark.slow
def test_two_processes_train_the_same(checkpoint, tmp_path, alone):
    """Two DDP processes give the losses of one, with a frozen encoder and unused layers."""
    settings = {"frozen": True, "layers": (-2, 0), "combine": "weighted", "bilstm": 4, "log_every": 1, "num_epochs": 2}
    single = recipe("tagging", checkpoint, tmp_path, 32, **settings)
    flags = ["--frozen", "--layers", "-2", "0", "--combine", "weighted", "--bilstm", "4", "--log-every", "1"]
    flags += ["--num-epochs", "2", "--dropout", "0", "--max-seq-length", "32", "--dtype", "fp32"]
    flags += ["--global-batch-size", "16", "--learning-rate", "1e-2", "--train", str(single.train[0])]
    command = [sys.executable, "-m", "training.launch", "2", "training.finetune", "tagging", *flags]

    finetune(single, alone)
    subprocess.run(
        [*command, "--checkpoint", str(checkpoint), "--run-dir", str(tmp_path / "two")], check=True, capture_output=True
    )

    losses = [[line["loss"] for line in read_metrics(tmp_path / name) if "loss" in line] for name in ("run", "two")]

    assert len(losses[0]) == 4
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
