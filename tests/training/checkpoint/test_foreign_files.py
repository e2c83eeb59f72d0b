"""Files of other projects that mean something else than they seem to: read as transformers does, or refused."""

import json
import re
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import processors
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

from tests.families import change_config_file, create
from tests.toy_tokenizers import wordpiece
from training.checkpoint.reader import load_model, load_tokenizer
from training.checkpoint.task_inference import read_checkpoint_task
from training.checkpoint.weights import read_weights
from training.finetuning.data import read_data
from training.finetuning.recipe import FinetuneRecipe

FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt", "spm.model")
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 1234\n".format("0" * 64)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """Return a checkpoint of a classifier with three labels, written by transformers."""
    directory = tmp_path_factory.mktemp("classifier")
    create("bert", "classification", directory)
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    return directory


@pytest.fixture
def checkpoint(classifier, tmp_path):
    """Return a copy to change."""
    return shutil.copytree(classifier, tmp_path / "checkpoint")


@pytest.mark.parametrize(
    ("id2label", "num_labels", "problem"),
    [
        (None, 3, ""),
        (None, None, "fit `classification`"),  # two, as in transformers
        ({"0": 1, "1": 2, "2": 5}, None, ""),
        ({"0": "a", "1": 2, "2": "c"}, 7, ""),
        ({"0": 1.5, "1": 2, "2": 5}, None, "id2label of config.json must name a label"),
        ({"0": True, "1": False, "2": None}, None, "id2label of config.json must name a label"),
        *(
            (None, count, "num_labels of config.json must be a whole number from 1")
            for count in (0, -1, 3.0, "3", True)
        ),
    ],
)
def test_labels_are_those_of_transformers(id2label, num_labels, problem, checkpoint):
    """A number of labels gives LABEL_0 and so on, whole numbers are names, and anything else is refused."""
    change_config_file(checkpoint, id2label=id2label, label2id=None, num_labels=num_labels)

    if problem:
        with pytest.raises(ValueError, match=problem):
            load_model(checkpoint, "classification")
        return
    expected = transformers.AutoConfig.from_pretrained(checkpoint).id2label
    assert read_checkpoint_task(checkpoint).task.settings.labels == tuple(map(str, expected.values()))
    assert load_model(checkpoint, "classification").classifier.out_features == 3


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
@pytest.mark.parametrize("wrapper", ["module.", "model.", "_orig_mod.", "model._orig_mod.", "module.module."])
def test_names_of_wrapped_networks(kind, wrapper, tmp_path):
    """Weights of a network that was saved within another module are those of the network."""
    create(kind, "classification", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    expected = load_model(tmp_path, "classification").state_dict()
    save_file({f"{wrapper}{name}": value for name, value in weights.items()}, tmp_path / "model.safetensors")

    found = load_model(tmp_path, "classification").state_dict()

    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_names_of_other_wrappers_are_named(checkpoint):
    """The error for weights under other names shows one, and what to remove."""
    weights = read_weights(checkpoint)
    save_file({f"net.{name}": value for name, value in weights.items()}, checkpoint / "model.safetensors")

    with pytest.raises(ValueError, match=r"it has `net\.bert\.\S+`; save the weights without `net\.`"):
        load_model(checkpoint, "classification")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt", "spm.model"])
def test_pointers_of_git_lfs(name, checkpoint):
    """A pointer in place of any file is named, with the command that fetches the file."""
    if name in ("vocab.txt", "spm.model"):
        (checkpoint / "tokenizer.json").unlink()
    (checkpoint / name).write_text(POINTER)

    with pytest.raises(ValueError, match=rf"^`{checkpoint / name}` is a git-lfs pointer.*; run git lfs pull$"):
        load_tokenizer(checkpoint)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_pointers_in_place_of_weights(name, checkpoint):
    """The same holds for weights in both formats."""
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / name).write_text(POINTER)

    with pytest.raises(ValueError, match=rf"^`{checkpoint / name}` is a git-lfs pointer.*run git lfs pull$"):
        load_model(checkpoint, "classification")


@pytest.mark.parametrize("task", ["classification", "tagging"])
@pytest.mark.parametrize("config", [None, "left", "right"])
@pytest.mark.parametrize("own", [None, "left", "right"])
def test_the_side_that_transformers_cuts(own, config, task, tmp_path):
    """A tokenizer that cuts off the beginning of texts is refused before training, if the task cuts texts."""
    create("bert", task, tmp_path)
    backend = wordpiece()
    if own:
        backend.enable_truncation(20, direction=own)
    backend.save(str(tmp_path / "tokenizer.json"))
    values = {"tokenizer_class": "BertTokenizer"} | ({"truncation_side": config} if config else {})
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(values))
    (tmp_path / "train.tsv").write_text("label\ttext\na\tthe cat\nb\tthe dog\n")
    (tmp_path / "train.conll").write_text("the O\ncat B-A\n")
    data = tmp_path / ("train.tsv" if task == "classification" else "train.conll")
    recipe = FinetuneRecipe(task=task, checkpoint=tmp_path, train=(data,), run_dir=tmp_path / "run", max_seq_length=16)
    side = transformers.AutoTokenizer.from_pretrained(tmp_path).truncation_side

    for read in (lambda: read_checkpoint_task(tmp_path), lambda: read_data(recipe)):
        if side == "left" and task == "classification":
            with pytest.raises(ValueError, match=r"unsupported truncation\S+ `left` in `.*tokenizer\S*json`: only the"):
                read()
        else:
            read()


def names_of(classes):
    return {name for pair in classes for name in (pair if isinstance(pair, tuple) else (pair,)) if name}


def test_classes_that_read_no_tokenizer_file(checkpoint):
    """A class that transformers loads from other files is refused next to `tokenizer.json`; all others are not."""
    names = names_of(TOKENIZER_MAPPING_NAMES.values())
    fast = {name for name in names if name.endswith("Fast")} | {"PreTrainedTokenizerFast", "TokenizersBackend"}
    path = checkpoint / "tokenizer_config.json"
    for name in sorted(names | fast):
        path.write_text(json.dumps({"tokenizer_class": name}))
        if name in fast or f"{name}Fast" in fast:
            load_tokenizer(checkpoint)
        else:
            with pytest.raises(ValueError, match=rf"names another tokenizer \(tokenizer_class `\"{name}\"`\)"):
                load_tokenizer(checkpoint)


@pytest.mark.parametrize(
    ("config", "values", "named"),
    [
        ({}, {"auto_map": {"AutoTokenizer": ["code.KoBertTokenizer", None]}}, "tokenizer_config.json"),
        ({}, {"auto_map": ["code.KoBertTokenizer", None]}, "tokenizer_config.json"),
        ({"tokenizer_class": "BertJapaneseTokenizer"}, {}, "config.json"),
        ({"tokenizer_class": "BertJapaneseTokenizer"}, {"tokenizer_class": "BertTokenizer"}, ""),
        ({"auto_map": {"AutoModel": "code.Model"}}, {}, ""),
    ],
)
def test_where_another_tokenizer_is_named(config, values, named, checkpoint):
    """The file that names another tokenizer is the one that transformers obeys."""
    change_config_file(checkpoint, **config)
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(values))

    if named:
        with pytest.raises(ValueError, match=rf"`{re.escape(str(checkpoint / named))}` names another tokenizer"):
            load_tokenizer(checkpoint)
    else:
        load_tokenizer(checkpoint)


@pytest.mark.parametrize("template", [None, "$A", "[CLS] $A [SEP]"])
def test_special_tokens_are_those_of_transformers(template, checkpoint):
    """A text has the special tokens that transformers adds; a file that says nothing of them is refused."""
    backend = wordpiece()
    special = [(name, backend.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    pair = f"{template} $B:1"
    backend.post_processor = template and processors.TemplateProcessing(template, pair, special)
    backend.save(str(checkpoint / "tokenizer.json"))
    expected = transformers.AutoTokenizer.from_pretrained(checkpoint)("the cat")["input_ids"]

    if template:
        tokenizer = load_tokenizer(checkpoint)
        assert tokenizer.assemble(tokenizer.tokenize(["the cat"])[0].ids)["input_ids"].tolist() == expected
    else:
        assert backend.token_to_id("[CLS]") not in expected
        with pytest.raises(ValueError, match=r"tokenizer\.json` has no post_processor, so transformers adds no"):
            load_tokenizer(checkpoint)
