"""Tests of fine-tuning: learning from our checkpoints and transformers', labels of windows, messages, and defaults."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

from export.evaluation_set import ExportData
from tasks import create_task
from tasks.batching import predict
from tasks.bundle.files import sha256
from tasks.features import Features
from tasks.spans import SpanExample, SpanSettings
from tasks.tagging import TaggingExample
from tasks.text.tokenizer import Tokenizer
from tasks.text.tokenizer_files import TOKENIZER_CONFIG_FILE, TOKENIZER_FILE
from tests.commands import call
from tests.toy import write_classification, write_spans
from training.checkpoint.evaluation import load_for_evaluation
from training.checkpoint.reader import load_model, load_tokenizer
from training.checkpoint.task_card import read_task_card
from training.data.columns import Columns
from training.data.examples import Examples
from training.evaluate import main as evaluate
from training.finetune import main
from training.finetuning.run import finetune
from training.loop.run_directory import read_metrics
from training.objectives.base import LabelledFeatures
from training.objectives.finetuning import FinetuningData, label_examples
from training.objectives.labelled import read_examples
from training.objectives.registry import OBJECTIVES
from training.objectives.spans import answer_positions
from training.reports.samples import sample_predictions


def test_classification_learns(finetuning, tmp_path, alone):
    """Accuracy on dev reaches 95%, and the checkpoint holds its settings and scores."""
    train, dev = (write_classification(tmp_path / f"{seed}.jsonl", 200, seed) for seed in (0, 1))
    recipe = finetuning(train, dev, num_epochs=8)

    path = finetune(recipe, alone)

    card = read_task_card(path)

    assert card.settings.labels == ("no", "yes")
    assert card.settings.max_seq_length == 64
    assert card.scores["dev"]["accuracy"] > 0.95 > card.scores["majority label"]["accuracy"]
    assert len([line for line in read_metrics(tmp_path / "run") if "eval_accuracy" in line]) >= 4
    assert transformers.AutoModelForSequenceClassification.from_pretrained(path).config.id2label == {0: "no", 1: "yes"}


def test_dev_data_may_be_part_of_the_training_data(finetuning, tmp_path, alone, capsys):
    """A fraction of the training data is scored, and everything that scores the checkpoint later uses the same part."""
    train = write_classification(tmp_path / "train.jsonl", 60, 0)
    recipe = finetuning(train, dev_fraction=0.2, num_epochs=1, global_batch_size=64)

    card = read_task_card(finetune(recipe, alone))

    said = capsys.readouterr()
    assert "dev data: 12 of 60 examples, at random, in the proportions of the labels\n" in said.out
    assert "a batch has 64 sequences, the training data 48, so that each step repeats some" in said.err
    assert card.scores["num_dev_examples"] == 12
    task, run = load_for_evaluation(recipe.run_dir / "checkpoint")
    found = ExportData().with_defaults(card, task).evaluation_set(task)
    assert found.score(predict(task, found.examples, run)) == pytest.approx(card.scores["dev"])
    note, _ = sample_predictions(recipe.run_dir, json.loads((recipe.run_dir / "recipe.json").read_text()))
    assert "12 " in note
    with pytest.raises(ValueError, match="--dev-fraction needs --train, and replaces --dev"):
        finetuning(train, train, dev_fraction=0.2)
    with pytest.raises(ValueError, match=r"--dev-fraction `0\.001` of 60 examples leaves one part empty"):
        finetune(replace(recipe, dev_fraction=0.001, run_dir=tmp_path / "other"), alone)


def test_folder_of_early_sentence_transformers_is_a_checkpoint(checkpoint, tmp_path, monkeypatch, capfd):
    """The network is in a subfolder that `modules.json` names."""
    folder = tmp_path / "vectors"
    shutil.copytree(checkpoint, folder / "0_Transformer")
    modules = [("0_Transformer", "models.Transformer"), ("1_Pooling", "models.Pooling")]
    described = [{"path": path, "type": f"sentence_transformers.{kind}"} for path, kind in modules]
    (folder / "modules.json").write_text(json.dumps(described))
    train = write_classification(tmp_path / "train.jsonl", 40, 0)
    paths = {"checkpoint": folder, "train": train, "run-dir": tmp_path / "run", "num-epochs": 1}
    arguments = ["classification", *(str(word) for name, value in paths.items() for word in (f"--{name}", value))]

    result = call(main, arguments, monkeypatch, capfd)

    assert result.returncode == 0, result.stderr
    assert read_task_card(tmp_path / "run/checkpoint").settings.labels == ("no", "yes")


def test_spans_learn(finetuning, tmp_path, alone):
    """F1 on dev is high over several windows, with unanswerable questions."""
    train, dev = (
        write_spans(tmp_path / f"{seed}.json", number, seed, unanswerable=True) for seed, number in ((0, 240), (1, 60))
    )
    recipe = finetuning(train, dev, task="spans", max_seq_length=32, max_query_length=8, doc_stride=12, num_epochs=5)

    path = finetune(recipe, alone)

    card = read_task_card(path)
    assert card.settings.unanswerable
    assert card.scores["dev"]["f1"] > 0.8 > card.scores["always no answer"]["f1"]


def test_null_threshold_with_the_best_f1_is_kept(finetuning, tmp_path, alone):
    """`auto` scores at least as well as threshold 0, reports both, and stores its threshold in the checkpoint."""
    train, dev = (write_spans(tmp_path / f"{seed}.json", 100, seed, unanswerable=True) for seed in (0, 1))
    recipe = finetuning(train, dev, task="spans", null_threshold="auto", max_query_length=8, num_epochs=2)

    path = finetune(recipe, alone)

    card = read_task_card(path)
    task, run = load_for_evaluation(path)
    examples = read_examples("spans", [dev], columns=Columns(), tokenizer=task.tokenizer)

    assert task.settings.null_threshold == card.settings.null_threshold != 0
    assert card.scores["dev"]["f1"] >= card.scores["dev, null threshold 0"]["f1"]
    assert task.score(examples, predict(task, examples, run)) == pytest.approx(card.scores["dev"])
    with pytest.raises(ValueError, match="--null-threshold auto needs unanswerable questions"):
        finetune(replace(recipe, train=(write_spans(tmp_path / "a.json", 10, 0),), run_dir=tmp_path / "other"), alone)


def test_answers_without_spaces_are_scored_by_characters(finetuning, tmp_path, alone):
    """Every score of answers without spaces counts characters, under one name in training, evaluation and baseline."""
    question = {"question": "在哪里？", "answers": [{"text": "北京大学", "answer_start": 2}]}
    unanswerable = {"question": "是谁？", "answers": []}
    paragraphs = [
        {"context": "他在北京大学学习。", "qas": [{"id": str(i), **(question, unanswerable)[i % 2]}]} for i in range(16)
    ]
    data = tmp_path / "zh.json"
    data.write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
    recipe = finetuning(data, data, task="spans", null_threshold="auto", max_query_length=8, num_epochs=1)

    scores = read_task_card(finetune(recipe, alone)).scores

    names = [
        f"{kind}{name} (characters)" for kind in ("", "has_answer_", "no_answer_") for name in ("exact_match", "f1")
    ]
    for row in ("dev", "dev, null threshold 0", "always no answer"):
        assert list(scores[row]) == names

    assert any(names[1] in key for line in read_metrics(tmp_path / "run") for key in line)


def test_answer_positions_are_those_of_the_reference(tokenizer_dir):
    """A window that contains the whole answer gets its first and last token, and others get [CLS] twice."""
    tokenizer = Tokenizer.load(tokenizer_dir)
    settings = SpanSettings(max_seq_length=16, max_query_length=4, doc_stride=4, unanswerable=True)
    task = create_task("spans", tokenizer, settings)
    context = " ".join(["the"] * 9 + ["big red"] + ["cat"] * 9)
    example = SpanExample("the house", context, ("big red",), context.index("big red"))

    windows = task.encode([example])[0]
    positions = [answer_positions(example, window) for window in windows]

    assert len(windows) > 2
    assert (0, 0) in positions
    seen = [(w, p) for w, p in zip(windows, positions, strict=True) if p != (0, 0)]
    assert seen
    for window, (first, last) in seen:
        assert context[window.offsets[first, 0] : window.offsets[last, 1]] == "big red"
    assert {answer_positions(SpanExample("the house", context), window) for window in windows} == {(0, 0)}


@pytest.mark.parametrize("answer", ["big red", " big red ", "ca\u0301t\u0301"])
def test_what_tokens_drop_of_an_answer_is_ignored(answer, tokenizer_dir):
    """White space and accents around an answer, which no token has, are ignored; a blank answer cannot be used."""
    task = create_task("spans", Tokenizer.load(tokenizer_dir), SpanSettings(max_seq_length=32, max_query_length=4))
    context = "the big red ca\u0301t\u0301 the"
    example = SpanExample("the house", context, (answer,), context.index(answer))

    (window,) = task.encode([example])[0]
    first, last = answer_positions(example, window)

    assert context[window.offsets[first, 0] : window.offsets[last, 1]] == answer.strip()
    assert not OBJECTIVES["spans"].is_usable(SpanExample("the house", context, (" ",), 3))


def test_misplaced_answers_are_left_out_and_counted(tokenizer_dir):
    """An example whose answer_start does not point at the answer is left out and counted."""
    task = create_task("spans", Tokenizer.load(tokenizer_dir), SpanSettings())
    good, bad = SpanExample("the?", "a cat", ("cat",), 2), SpanExample("the?", "a cat", ("cat",), 1)

    items, left_out = label_examples(task, Examples([("line 1", good), ("line 2", bad)]))

    assert (len(items), left_out.locations) == (1, ["line 2"])


FOUR_TOKENS = "the the the the"


@pytest.mark.parametrize(
    ("answers", "doubt"),
    [
        ([("the",), (), ("the the", FOUR_TOKENS)], []),
        ([(FOUR_TOKENS,), (), (FOUR_TOKENS, "the"), (FOUR_TOKENS, f"the {FOUR_TOKENS}")], [(2, 3, 4)]),
        ([()], []),
    ],
)
def test_too_long_answers_are_counted(answers, doubt, tokenizer_dir):
    """A warning counts examples whose answers are all too long, with the flag to change."""
    settings = SpanSettings(max_seq_length=32, max_query_length=4, max_answer_length=3)
    task = create_task("spans", Tokenizer.load(tokenizer_dir), settings)
    examples = [SpanExample("the?", "the the the", texts) for texts in answers]

    assert OBJECTIVES["spans"].warnings(task, examples) == [
        f"{count} of {total} answers are longer than 3 tokens (up to {longest}), and can never be predicted: raise "
        "--max-answer-length"
        for count, total, longest in doubt
    ]


@pytest.mark.parametrize(
    ("context", "answer", "doubt"),
    [
        ("the cat, the", "cat", ""),
        ("the cats", "cat", "1 of 1 answers begin or end inside a word, as between `cat` and `s`: check"),
        ("the cat", " cat ", ""),
        (
            "the cat",
            "h",
            "between `t` and `he`; 1 of them inside a token, and are trained with the whole token: check",
        ),
        ("中国人", "国", ""),
        ("the-cat's", "cat", ""),
    ],
)
def test_answers_inside_words_are_counted(context, answer, doubt, tokenizer_dir):
    """A warning counts answers that begin or end inside a word, and those inside a token."""
    task = create_task("spans", Tokenizer.load(tokenizer_dir), SpanSettings())
    start = context.index(answer.strip()) - (len(answer) - len(answer.lstrip()))
    context = context.ljust(start + len(answer))
    example = SpanExample("the?", context, (answer,), start)

    lines = OBJECTIVES["spans"].warnings(task, [example, SpanExample("the?", "the", ())])

    assert len(lines) == bool(doubt)
    assert doubt in "".join(lines)


def test_every_sequence_once_an_epoch(tokenizer_dir):
    """Batches cover every sequence once an epoch in a new order, with sequences of similar length together."""
    task = create_task("spans", Tokenizer.load(tokenizer_dir), SpanSettings())
    examples = [SpanExample("the?", " ".join(["cat"] * (1 + n % 50)), ("cat",), 0) for n in range(128)]
    items, _ = label_examples(task, Examples(("here", example) for example in examples))
    data = FinetuningData(items, OBJECTIVES["spans"], global_batch_size=16, seed=0, pad_id=0)

    orders = []
    for epoch in (0, 1):
        batches = [data.batch(epoch, index, slice(0, 16)) for index in range(data.num_batches(epoch))]
        orders.append([batch.num_tokens for batch in batches])
        assert sum(batch.num_tokens for batch in batches) == sum(item.length for item in items)
        assert sum(batch.inputs["attention_mask"].numel() for batch in batches) < 1.3 * sum(orders[-1])

    assert orders[0] != orders[1]


def test_unusable_dev_data_are_refused_before_training(finetuning, tmp_path, alone):
    """An unusable dev example is an error before training that names its line."""
    train, dev = (write_classification(tmp_path / f"{seed}.jsonl", 8, seed) for seed in (0, 1))
    with open(dev, "a", encoding="utf-8") as file:
        file.write('{"text": "\u200b", "label": "no"}\n')
    recipe = finetuning(train, dev)

    with pytest.raises(ValueError, match=r"1\.jsonl`, line 9, text: empty text; it needs at least one word"):
        finetune(recipe, alone)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_data_without_a_usable_answer_is_refused(finetuning, tmp_path, alone):
    """Data without any usable answer are refused."""
    question = {"id": "1", "question": "Where?", "answers": [{"text": "not there", "answer_start": 0}]}
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": "here it is", "qas": [question]}]}]}))

    recipe = finetuning(path, task="spans", max_query_length=8, doc_stride=8)

    with pytest.raises(ValueError, match=r"no example can be used: no answer is at .*a\.json`, question `1`"):
        finetune(recipe, alone)


@pytest.mark.parametrize(
    ("names", "message"), [(("text_pair", "pair"), "single texts, but .* pairs"), (("pair", "text_pair"), "pairs, but")]
)
def test_dev_data_without_the_pairs_of_train_are_refused(names, message, finetuning, tmp_path, alone):
    """Pairs in the training data alone, or in the dev data alone, are refused."""
    train, dev = tmp_path / "train.tsv", tmp_path / "dev.tsv"
    train.write_text(f"text\t{names[0]}\tlabel\nthe cat\ta cat\tyes\na dog\tthe cat\tno\n")
    dev.write_text(f"text\t{names[1]}\tlabel\nthe cat\ta cat\tyes\n")
    recipe = finetuning(train, dev)

    with pytest.raises(ValueError, match=rf"dev.tsv` has {message}"):
        finetune(recipe, alone)


def test_tokenizer_of_another_network_is_refused(finetuning, checkpoint, tmp_path, alone):
    """A tokenizer with more ids than embeddings is refused."""
    foreign = shutil.copytree(checkpoint, tmp_path / "foreign")
    (foreign / TOKENIZER_FILE).unlink()
    with open(foreign / "vocab.txt", "a", encoding="utf-8") as file:
        file.write("onemoretoken\n")
    train = write_classification(tmp_path / "train.jsonl", 8, 0)
    recipe = finetuning(train, checkpoint=foreign)

    with pytest.raises(ValueError, match="they do not belong together"):
        finetune(recipe, alone)


def test_another_tokenizer_with_the_same_weights_is_refused(finetuning, checkpoint, tmp_path, alone):
    """A finished run refuses a checkpoint whose tokenizer has changed."""
    source = shutil.copytree(checkpoint, tmp_path / "source")
    train = write_classification(tmp_path / "train.jsonl", 8, 0)
    recipe = finetuning(train, checkpoint=source)
    finetune(recipe, alone)
    text = (source / TOKENIZER_FILE).read_text().replace('"lowercase": true', '"lowercase": false')
    (source / TOKENIZER_FILE).write_text(text)
    config = source / TOKENIZER_CONFIG_FILE
    config.write_text(config.read_text().replace('"do_lower_case": true', '"do_lower_case": false'))

    with pytest.raises(ValueError, match="was started with other contents of `tokenizer`"):
        finetune(recipe, alone)


def test_a_task_card_that_asks_for_too_much_is_refused(checkpoint, tmp_path):
    """A task card with a max_seq_length above the network's is refused when it is loaded."""
    edited = shutil.copytree(checkpoint, tmp_path / "edited")
    card = json.loads((edited / "task.json").read_text())
    card["settings"]["max_seq_length"] = 65
    (edited / "task.json").write_text(json.dumps(card))

    with pytest.raises(ValueError, match="max_seq_length `65` exceeds the 64 positions"):
        load_for_evaluation(edited)


def test_evaluate_prints_scores_and_writes_predictions(finetuning, tmp_path, alone, monkeypatch, capfd):
    """The command prints the scores of the task card, and writes predictions."""
    train = write_classification(tmp_path / "train.jsonl", 64, 0)
    recipe = finetuning(train, train)
    path = finetune(recipe, alone)

    out = tmp_path / "predictions.jsonl"
    arguments = [str(path), "--data", str(train), "--train", str(train), "--predictions", str(out)]
    result = call(evaluate, arguments, monkeypatch, capfd)

    assert result.returncode == 0, result.stderr
    assert f"{100 * read_task_card(path).scores['dev']['accuracy']:.2f}" in result.stdout
    assert "majority label" in result.stdout
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 64
    assert sum(rows[0]["scores"].values()) == pytest.approx(1, abs=1e-5)

    train.write_text('{"text": "\\u597d", "label": "no", "pair": "x"}\n' * 2, encoding="utf-8")
    result = call(evaluate, arguments, monkeypatch, capfd)
    assert f"note: unused columns of `{train}`: `pair`\n" in result.stdout
    assert "warning: data: every label is `no`, so that nothing is learnt or compared\n" in result.stderr
    assert '"text": "好"' in out.read_text(encoding="utf-8")

    train.write_text('{"text": "x", "label": "no", "text_pair": "y"}\n')
    result = call(evaluate, arguments, monkeypatch, capfd)
    assert "warning: data: 1 of 1 examples are pairs of texts, but the checkpoint was trained on si" in result.stderr

    train.write_text('{"text": "x", "label": "maybe"}\n')
    result = call(evaluate, [str(path), "--data", str(train)], monkeypatch, capfd)
    assert result.stderr == f"error: `{train}`, line 1: label `maybe` is none of the checkpoint's: no, yes\n"


def test_predictions_of_masked_words_are_refused_at_once(checkpoint, tmp_path, monkeypatch, capfd):
    """A task without predictions is refused before any data are read."""
    arguments = [str(checkpoint), "--data", "nowhere.txt", "--predictions", str(tmp_path / "out.jsonl")]

    result = call(evaluate, arguments, monkeypatch, capfd)

    assert (result.returncode, len(result.stderr.splitlines())) == (1, 1)
    assert "--predictions is not for masked-lm" in result.stderr


def test_evaluate_knows_the_columns_of_the_training(finetuning, tmp_path, alone, monkeypatch, capsys):
    """`training.evaluate` uses the training's columns if the data have them, and flags take precedence."""
    named, usual = tmp_path / "named.tsv", tmp_path / "usual.tsv"
    named.write_text("sentence\ttext\tclass\nthe cat\t\tyes\nthe dog\tthe tree\tno\n")
    usual.write_text("text\tlabel\nthe cat\tyes\n")
    recipe = finetuning(named, columns=Columns(text="sentence", label="class"), num_epochs=0.1)
    path = finetune(recipe, alone)

    for data, flags, expected in (
        (named, [], "2 examples"),
        (usual, [], "1 examples"),
        (
            named,
            ["--columns.text", "text"],
            f"error: `{named}`, line 2: `text` is empty",
        ),
    ):
        monkeypatch.setattr("sys.argv", ["evaluate", str(path), "--data", str(data), *flags])
        try:
            evaluate()
            said = capsys.readouterr().out
        except SystemExit as error:
            said = error.code
        assert expected in said


def test_the_card_counts_steps_and_names_data(finetuning, tmp_path, alone):
    """The card gives the steps until the time budget ended, and data files under distinct names."""
    paths = [tmp_path / part / "data.jsonl" for part in ("a", "b", "c")]
    for seed, path in enumerate(paths):
        path.parent.mkdir()
        write_classification(path, 32, seed)
    recipe = finetuning(paths[0], paths[2], num_epochs=10, max_minutes=1e-9)

    record = read_task_card(finetune(replace(recipe, train=tuple(paths[:2])), alone)).provenance

    assert (record["num_steps"], record["num_epochs"]) == (1, 1 / 4)
    assert record["num_tokens"] == read_metrics(tmp_path / "run")[0]["num_tokens"]
    assert record["data"] == {f"{path.parent.name}/data.jsonl": sha256(path) for path in paths}


def test_shapes_of_batches_are_few():
    """Lengths of batches are multiples of 16, at most the longest sequence."""
    sequences = [Features(input_ids=np.ones(size, int), token_type_ids=np.zeros(size, int)) for size in range(3, 91)]
    items = [LabelledFeatures((sequence,), (0,)) for sequence in sequences]
    data = FinetuningData(items, OBJECTIVES["classification"], global_batch_size=4, seed=0, pad_id=0)

    batches = [data.batch(0, index, slice(None)) for index in range(data.num_batches(0))]

    assert {batch.inputs["input_ids"].shape[1] for batch in batches} <= {16, 32, 48, 64, 80, 90}
    assert sum(batch.num_tokens for batch in batches) == sum(range(3, 91))


def test_a_run_prints_its_data_and_warnings(finetuning, tmp_path, alone, capsys):
    """The run prints the data it read, dev examples known from training, weak scores, and earlier results."""
    train = write_classification(tmp_path / "train.jsonl", 24, seed=1)
    dev = tmp_path / "dev.jsonl"
    rows = [json.loads(line) for line in train.read_text().splitlines()]
    rows[0] |= {"label": "yes" if rows[0]["label"] == "no" else "no"}
    dev.write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = finetuning(train, dev, num_epochs=0.1, learning_rate=1e-09)
    finetune(recipe, alone)
    found = capsys.readouterr()
    assert "24 examples: texts; 2 labels (no, yes); 24 sequences" in found.out
    assert "note: 24 of 24 dev examples are in the training data, too" in found.out
    assert "warning: accuracy is not above majority label" in found.err

    finetune(recipe, alone)
    assert f"`{recipe.run_dir}` was finished before" in capsys.readouterr().out
    finetune(replace(recipe, dev=(), run_dir=tmp_path / "other"), alone)
    assert "nothing will be scored: there are no dev data" in capsys.readouterr().out


def test_a_run_warns_about_unknown_and_truncated_text(finetuning, checkpoint, tmp_path, alone, monkeypatch, capsys):
    """The run warns about unknown words and truncated texts, in training, dev and evaluation."""
    train, dev = tmp_path / "train.tsv", tmp_path / "dev.tsv"
    train.write_text("text\tlabel\n" + "今天天气很好，我们走吧\tyes\n昨天天气不好\tno\n" * 4)
    dev.write_text("text\tlabel\n" + "the cat " * 20 + "\tyes\n")

    finetuned = finetune(finetuning(train, dev, max_seq_length=8, num_epochs=0.1), alone)

    said = capsys.readouterr()
    assert f"of the tokens of the training sequences are [UNK]: the vocabulary of `{checkpoint}`" in said.err
    assert "note: 4 of 8 training sequences were cut to fit max_seq_length 8" in said.out
    assert "note: 1 of 1 dev examples were cut to fit max_seq_length 8" in said.out
    card = (finetuned / "README.md").read_text()
    assert "4 of 8 training sequences were cut to fit max_seq_length 8. 1 of 1 dev examples were cut" in card
    monkeypatch.setattr("sys.argv", ["evaluate", str(finetuned), "--data", str(dev)])
    evaluate()
    assert "note: 1 of 1 examples were cut to fit max_seq_length 8" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("task", "changes"),
    [
        ("classification", {"doc_stride": 7}),
        ("regression", {"null_threshold": 1}),
        ("spans", {"label_smoothing": 0.1}),
        ("multiple-choice", {"class_weights": "balanced"}),
    ],
)
def test_settings_of_other_tasks_are_refused(finetuning, task, changes, tmp_path):
    """Settings of another task are refused."""
    (name,) = changes
    with pytest.raises(ValueError, match=rf"--{name.replace('_', '-')} .* has no effect here: it is for "):
        finetuning(tmp_path, task=task, checkpoint=tmp_path, run_dir=tmp_path, **changes)


@pytest.mark.parametrize(("labels", "is_warned"), [(["0", "1"], False), (["0.5", "1.0"], True)])
def test_numeric_labels_get_a_warning(labels, is_warned, finetuning, tmp_path, alone, capsys):
    """A warning suggests regression if the labels are fractions or many numbers."""
    train = tmp_path / "train.tsv"
    train.write_text("text\tlabel\n" + "".join(f"the cat\t{label}\n" for label in labels))

    finetune(finetuning(train, num_epochs=0.1), alone)

    warning = f"warning: all {len(labels)} labels are numbers; if they measure something, use the task `regression`"
    assert (warning in capsys.readouterr().err) == is_warned
    dev = tmp_path / "dev.tsv"
    dev.write_text("text\tlabel\nthe cat\t99\n")
    hint = f"; {warning.removeprefix('warning: ')}" if is_warned else ""
    with pytest.raises(ValueError, match=f"label `99` does not occur in the training data{hint}$"):
        finetune(finetuning(train, dev, run_dir=tmp_path / "b"), alone)


@pytest.mark.parametrize(("label", "near"), [("1.0", "1"), ("YES", "yes")])
def test_unknown_labels_are_told_from_spellings(label, near, finetuning, tmp_path, alone):
    """The message for a dev label that the training data lack names the one that differs only in spelling."""
    for name, text in (("train", near), ("dev", label)):
        (tmp_path / f"{name}.tsv").write_text(f"text\tlabel\nthe cat\t{text}\nthe dog\tno\n")

    with pytest.raises(ValueError, match=rf"`{label}` does not occur in the training data; `{near}` does; write it"):
        finetune(finetuning(tmp_path / "train.tsv", tmp_path / "dev.tsv"), alone)


def test_the_curve_is_of_all_kinds_of_dev_examples(finetuning, tmp_path, alone):
    """The curve is measured on dev examples of every label, also if the file is sorted by label."""
    train = write_classification(tmp_path / "train.jsonl", 64, 0)
    rows = sorted(train.read_text().splitlines(), key=lambda line: json.loads(line)["label"])
    (tmp_path / "dev.jsonl").write_text("\n".join(rows) + "\n")
    recipe = finetuning(train, tmp_path / "dev.jsonl", num_epochs=1, eval_examples=20, learning_rate=1e-9)

    finetune(recipe, alone)

    found = [line["eval_accuracy"] for line in read_metrics(tmp_path / "run") if "eval_accuracy" in line]

    assert all(0.2 <= accuracy <= 0.8 for accuracy in found)


@pytest.mark.parametrize(("labels", "is_new"), [(("no", "yes"), False), (("yea", "nay"), True)])
def test_a_classifier_for_other_labels_is_replaced(labels, is_new, finetuning, tmp_path, alone, capsys):
    """A classifier for other labels is replaced by a new one, with a note."""
    rows = [json.loads(line) for line in write_classification(tmp_path / "train.jsonl", 32, 0).read_text().splitlines()]
    others = [json.dumps(row | {"label": labels[row["label"] == "yes"]}) for row in rows]
    (tmp_path / "others.jsonl").write_text("\n".join(others) + "\n")
    recipe = finetuning(tmp_path / "train.jsonl", num_epochs=0.5, learning_rate=1e-9)
    first = finetune(recipe, alone)
    capsys.readouterr()

    again = replace(recipe, checkpoint=first, train=(tmp_path / "others.jsonl",))
    paths = [finetune(replace(again, seed=seed, run_dir=tmp_path / str(seed)), alone) for seed in (1, 2)]

    one, two, old = (load_model(path, "classification").classifier.weight for path in (*paths, first))

    assert torch.allclose(one, old, atol=1e-5) != is_new
    assert torch.allclose(one, two, atol=1e-5) != is_new
    assert ("has other labels or another task; a new one is trained" in capsys.readouterr().out) == is_new


def test_words_of_running_text_are_those_of_the_training_data(finetuning, tmp_path, alone, capsys):
    """The task card holds the marks that belong to words, and a warning reports words that running text divides."""
    names = "Jean-Luc\tB-PER\nPicard\tI-PER\nof\tO\nAT&T\tB-ORG\n.\tO\n\n"
    (tmp_path / "names.conll").write_text(names * 4)
    (tmp_path / "chinese.conll").write_text("北京\tB-LOC\n很\tO\n大\tO\n\n" * 4)

    def tagger(name):
        fields = {"task": "tagging", "run_dir": tmp_path / name, "num_epochs": 0.1}
        return load_for_evaluation(finetune(finetuning(tmp_path / f"{name}.conll", **fields), alone))[0]

    assert tagger("names").complete(TaggingExample((), source="Anne-Marie joins H&M.")).words == (
        "Anne-Marie",
        "joins",
        "H&M",
        ".",
    )
    assert "become several words in running text" not in capsys.readouterr().err
    assert tagger("chinese").complete(TaggingExample((), source="北京")).words == ("北", "京")
    assert "33% of the words (`北京`) become several words in running text" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("tokens", "config", "is_told"),
    [
        (["the", "Cat", "Berlin", "##S"], None, True),
        (["the", "Cat", "Berlin", "##S"], {"do_lower_case": True}, False),
        (["the", "Cat", "Berlin", "##S"], {"do_lower_case": False}, False),
        (["the", "cat", "##s", "中"], None, False),
    ],
)
def test_a_lower_cased_cased_vocabulary_gets_a_warning(tokens, config, is_told, checkpoint, tmp_path, capsys):
    """A warning reports a cased vocabulary once if no configuration sets its case."""
    shutil.copy(checkpoint / "config.json", tmp_path)
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *tokens]
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in vocab))
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))

    load_tokenizer(tmp_path), load_tokenizer(tmp_path)

    assert capsys.readouterr().err.count("so all text is lower-cased, though 3 of its tokens have capitals") == is_told


def test_the_default_learning_rate_follows_from_the_size(finetuning, tmp_path, alone, capsys):
    """The default learning rate is printed and recorded, and a resumed run keeps its own."""
    train = write_classification(tmp_path / "train.jsonl", 16, 0)
    recipe = finetuning(train, num_epochs=0.1, learning_rate=None)
    finetune(recipe, alone)
    record = json.loads((tmp_path / "run" / "recipe.json").read_text())

    assert record["learning_rate"] == 3e-4
    assert "learning rate: 0.0003, by default for hidden size 32 (--learning-rate)" in capsys.readouterr().out
    (tmp_path / "run" / "recipe.json").write_text(json.dumps(record | {"learning_rate": 5e-5}))
    finetune(recipe, alone)
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["learning_rate"] == 5e-5
    with pytest.raises(ValueError, match=r"was started with learning_rate `5e-05`, not `0\.0003`"):
        finetune(replace(recipe, learning_rate=3e-4), alone)
