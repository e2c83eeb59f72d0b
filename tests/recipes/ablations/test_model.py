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
from torch.utils.flop_counter import FlopCounterMode

from export.source import read_source
from recipes.ablations.finetune import AblationFinetuneRecipe
from recipes.ablations.model import MODEL_TYPE, AblationConfig, with_changes
from recipes.ablations.pretrain import AblationPretrainRecipe, NextTokenExamples, pretrain_ablation
from tasks.batching import predict
from tasks.masked_lm import MaskedLMSettings
from tests.toy import TINY, write_classification, write_spans
from training.checkpoint.evaluation import load_for_evaluation
from training.checkpoint.reader import create_model, load_model, read_config, read_shape
from training.checkpoint.task_card import TaskCard, read_task_card
from training.checkpoint.weights import read_weights
from training.checkpoint.writer import save_checkpoint
from training.data.columns import Columns
from training.data.pretraining import Masking
from training.data.pretraining_batches import PretrainingData
from training.finetuning.run import finetune
from training.loop.optimizer import create_optimizer
from training.loop.run_directory import read_metrics
from training.model.architectures import ARCHITECTURES
from training.model.config import EncoderConfig
from training.model.flops import flops_per_token
from training.model.modernbert_encoder import ModernBertConfig
from training.objectives.baselines import masked_unigram
from training.objectives.labelled import read_examples
from training.objectives.masked_lm import MaskedLM
from training.text.corpus import Corpus

SIZES = {"vocab_size": 50, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
FAST = {"learning_rate": 1e-2, "global_batch_size": 16, "micro_batch_size": 16, "dtype": "fp32", "dropout": 0.0}


def shape(**changes):
    return with_changes(EncoderConfig(num_hidden_layers=3, **SIZES), changes)


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
    return AblationFinetuneRecipe(
        task=task, checkpoint=checkpoint, train=(train,), dev=(dev,), run_dir=run_dir, **fields
    )


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
    plain = create_model("tagging", with_changes(model.config, {"bilstm_size": 0})).eval()
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
    """`with_changes` returns a plain config for a network that is a BERT."""
    config = shape(**fields)

    assert type(config) is kind
    assert with_changes(config, {"direction": "both", "state_layers": (-1,), "bilstm_size": 0}) == shape()


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


@pytest.mark.parametrize(
    "task", ["tagging", *(pytest.param(name, marks=pytest.mark.slow) for name in ("classification", "spans"))]
)
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
def test_transformers_and_the_export_refuse_ablations(checkpoint, tmp_path, alone):
    """transformers and the export refuse an ablation; fine-tuning continues from it, with or without its BiLSTM."""
    first = finetune(recipe("classification", checkpoint, tmp_path, 32, layers=(1, 2), combine="sum", bilstm=8), alone)

    assert {name: read_config(first)[name] for name in ("model_type", "state_layers", "state_combination")} == {
        "model_type": MODEL_TYPE,
        "state_layers": [1, 2],
        "state_combination": "sum",
    }
    with pytest.raises(ValueError, match=MODEL_TYPE):
        transformers.AutoModelForSequenceClassification.from_pretrained(first)
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(ARCHITECTURES, MODEL_TYPE)
        with pytest.raises(ValueError, match=MODEL_TYPE):
            read_source(first)
    folder = tmp_path / "next"
    folder.mkdir()
    again = recipe("classification", first, folder, 32)
    assert isinstance(load_model(finetune(again, alone), "classification").bert.states.lstm, nn.LSTM)
    plain = finetune(replace(again, run_dir=folder / "plain", layers=(-1,), bilstm=0), alone)
    assert read_config(plain)["model_type"] == "bert"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": (3,)}, r"state_layers must be numbers from 0 .* to 2 .* or from -1 down to -3: `3`"),
        ({"combine": "sum"}, "needs several --layers"),
        ({"frozen": True, "unfreeze_every": 2}, "has no effect here: it is for layers that train"),
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
    command = [sys.executable, "-m", "training.launch", "2", "recipes.ablations.finetune", "tagging", *flags]

    finetune(single, alone)
    subprocess.run(
        [*command, "--checkpoint", str(checkpoint), "--run-dir", str(tmp_path / "two")], check=True, capture_output=True
    )

    losses = [[line["loss"] for line in read_metrics(tmp_path / name) if "loss" in line] for name in ("run", "two")]

    assert len(losses[0]) == 4
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


DIRECTIONS = ["left-to-right", "right-to-left", "concatenated"]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_tokens_look_only_where_they_may(direction):
    """A token's states depend only on tokens that its direction allows, and never on padding."""
    torch.manual_seed(0)
    model = create_model("embedding", shape(direction=direction), dropout=0.0).eval()
    ids, mask, types = arrays()
    changed = ids.clone()
    changed[:, 4] = 7

    with torch.no_grad():
        one, two = (model(values, mask, types)["last_hidden_state"] for values in (ids, changed))
        short = model(ids[1:2, :5], mask[1:2, :5], types[1:2, :5])["pooler_output"]
        trained = model.train()(ids, mask, types)["last_hidden_state"]
        whole = model.eval()(ids, mask, types)["pooler_output"][1:2]

    before, after = (one - two).abs().amax(-1)[0, :4] == 0, (one - two).abs().amax(-1)[0, 5:] == 0
    sees = {"left-to-right": (True, False), "right-to-left": (False, True), "concatenated": (False, False)}
    assert (before.all(), after.all()) == sees[direction]
    if direction == "concatenated":
        assert ((one - two)[0, :4, :16] == 0).all()
        assert ((one - two)[0, 5:, 16:] == 0).all()
    torch.testing.assert_close(short, whole)
    torch.testing.assert_close(one[mask.bool()], trained[mask.bool()])


def test_left_to_right_equals_transformers_decoder(tmp_path):
    """Our left-to-right network gives the states of transformers' causal mask with the same weights."""
    torch.manual_seed(0)
    config = transformers.BertConfig(num_hidden_layers=3, **SIZES, is_decoder=True)
    theirs = transformers.BertModel(config).eval()
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text()) | {"is_decoder": False, "direction": "left-to-right"}
    path.write_text(json.dumps(values | {"model_type": MODEL_TYPE}))
    ours = load_model(tmp_path, "embedding").eval()
    ids, mask, types = arrays()

    with torch.inference_mode():
        expected = theirs(ids, attention_mask=mask, token_type_ids=types).last_hidden_state
        found = ours(ids, mask, types)["last_hidden_state"]

    torch.testing.assert_close(found[mask.bool()], expected[mask.bool()], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("direction", ["left-to-right", "concatenated"])
def test_checkpoints_load_unchanged(direction, checkpoint, tmp_path):
    """Networks that are no BERT load here unchanged."""
    torch.manual_seed(0)
    model = create_model("masked-lm", with_changes(read_shape(checkpoint), {"direction": direction}))
    card = TaskCard(task="masked-lm", settings=MaskedLMSettings())
    save_checkpoint(tmp_path / "ours", model, tokenizer_from=checkpoint, card=card)
    back = load_model(tmp_path / "ours", "masked-lm")

    assert back.config == model.config
    assert all(torch.equal(value, back.state_dict()[name]) for name, value in model.state_dict().items())


def test_only_bert_has_ablations():
    """Other families are refused by name."""
    with pytest.raises(ValueError, match="ablations change a `bert`, not a `modernbert`"):
        with_changes(ModernBertConfig(num_hidden_layers=3, **SIZES), {"bilstm_size": 8})


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_language_models_predict_the_next_token(direction, corpus):
    """A language model predicts the next token, or the previous one from the right, and no token is hidden."""
    example = NextTokenExamples(corpus, direction, max_seq_length=48).example(0, 3)
    ids = example.input_ids

    expected = {
        "left-to-right": [(number, ids[number + 1]) for number in range(len(ids) - 1)],
        "right-to-left": [(number, ids[number - 1]) for number in range(1, len(ids))],
    }
    expected["concatenated"] = sorted(
        [(2 * number, label) for number, label in expected["left-to-right"]]
        + [(2 * number + 1, label) for number, label in expected["right-to-left"]]
    )
    found = list(zip(example.masked_positions.tolist(), example.masked_labels.tolist(), strict=True))

    assert found == expected[direction]
    assert corpus.tokenizer.mask_id not in ids


@pytest.mark.parametrize(("direction", "states"), [("left-to-right", 1), ("concatenated", 2)])
def test_batches_have_one_shape(direction, states, corpus):
    """Batches of language models have one shape, and their positions count the states of all stacks."""
    examples = NextTokenExamples(corpus, direction, max_seq_length=32, short_seq_prob=0.5)

    batch = PretrainingData(examples, 8, MaskedLM(next_sentences=False).targets).batch(0, 0, slice(0, 8))

    labels, positions = batch.targets["mlm"], batch.inputs["masked_positions_N"]
    assert len(labels) == len(positions) == 8 * 31 * states
    assert 8 * 31 * (states - 1) < positions.max() < 8 * 32 * states


@pytest.mark.parametrize("change", [{"state_layers": (1,)}, {"direction": "concatenated"}])
def test_layers_that_run_count(change):
    """The count of FLOPs includes layers that run and second directions, and leaves out unused layers."""
    config = shape(**change)
    model = create_model("embedding", config, dropout=0.0).train()
    ids = torch.randint(50, (2, 32))

    with FlopCounterMode(display=False) as counter:
        model.bert(ids, None, torch.zeros_like(ids)).sum().backward()

    assert counter.get_total_flops() == pytest.approx(flops_per_token(config, length=32, predicted=0) * 64, rel=0.01)


@pytest.mark.parametrize("combination", ["concat", "sum"])
def test_bilstm_counts(combination):
    """A BiLSTM takes six operations a token for each weight of its matrices."""
    config = shape(state_layers=(-1, -2), state_combination=combination, bilstm_size=24)
    model = create_model("tagging", config, dropout=0.0, num_labels=2)
    weights = sum(weight.numel() for weight in model.bert.states.lstm.parameters() if weight.dim() == 2)

    more = flops_per_token(config, length=128, predicted=0) - flops_per_token(shape(), length=128, predicted=0)

    assert more == pytest.approx(6 * weights)


@pytest.mark.parametrize(
    ("changes", "depths"),
    [
        ({"direction": "concatenated"}, {"layers.0": 3, "layers.2": 1, "layers.3": 3, "layers.5": 1, "embeddings": 4}),
        ({"state_layers": (2, 1)}, {"layers.0": 2, "layers.1": 1, "embeddings": 3}),
    ],
)
def test_depth_counts_from_the_head(changes, depths):
    """The depth of a layer counts down from the highest layer that the head reads, in each stack."""
    model = create_model("classification", shape(**changes), num_labels=2)
    optimizer = create_optimizer(model, weight_decay=0.01, betas=(0.9, 0.999), layer_decay=0.5, unfreeze_every=10)
    names = {id(value): name for name, value in model.named_parameters()}

    found = {names[id(value)]: group for group in optimizer.param_groups for value in group["params"]}
    for part, depth in depths.items():
        groups = [group for name, group in found.items() if name.startswith(f"bert.{part}.")]
        assert {(group["scale"], group["first_step"]) for group in groups} == {(0.5**depth, 10 * depth)}


@pytest.mark.parametrize("direction", ["left-to-right", "concatenated"])
def test_a_language_model_trains(direction, corpus_dir, tmp_path, alone):
    """Pretraining of a language model is compared with token frequencies, and leaves no card of a masked LM."""
    fields = {"corpus": corpus_dir, "dev_corpus": corpus_dir, "run_dir": tmp_path, "num_steps": 2, **TINY}
    recipe = AblationPretrainRecipe(**fields | {"next_sentences": False, "direction": direction})

    path = pretrain_ablation(recipe, alone)

    scores = read_task_card(path).scores
    masked = masked_unigram(*[Corpus(corpus_dir).token_counts()] * 2, Masking())
    assert scores["dev"]["mlm_loss"] > 0
    assert scores["unigram baseline"]["mlm_loss"] > masked["mlm_loss"]
    assert not (path / "README.md").exists()
    assert read_config(path)["direction"] == direction


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": "replaced-tokens"}, "--objective `replaced-tokens` has no effect here"),
        ({"next_sentences": True}, "give --no-next-sentences"),
    ],
)
def test_language_models_have_no_masks(changes, message, tmp_path):
    """Settings of a masked LM are refused."""
    fields = {"corpus": tmp_path, "run_dir": tmp_path, "next_sentences": False, "direction": "left-to-right"}
    with pytest.raises(ValueError, match=message):
        AblationPretrainRecipe(**fields | changes)
