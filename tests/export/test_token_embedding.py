"""Token vectors: folders of PyLate's ColBERT give its vectors, and any encoder its last hidden states."""

import functools
import json
import string

import numpy as np
import pytest
import scipy.stats
import torch
import transformers
from safetensors.torch import load_file, save_file

from export import graph_run
from export.evaluation_set import ExportData
from export.graph import build_graph
from export.source import read_source
from export.variant import GraphPrecision, GraphVariant
from tasks.batching import predict
from tasks.ranking import RankingExample, create_ranking
from tests.export.conftest import LABELS, PAIRS, changed, read_network, write_json, write_pairs
from tests.families import CONFIGS, batch, create, reference_outputs
from training.evaluate import main as evaluate

TEXTS = ["the cat", "a", "going home, the bakery [MASK] closed.", "x y z " * 6]
TYPES = ("sentence_transformers.models.Transformer", "pylate.models.Dense.Dense")
CONFIG = {
    "model_type": "ColBERT",
    "prompts": {"query": "", "document": ""},
    "default_prompt_name": None,
    "similarity_fn_name": "MaxSim",
    "query_prefix": "[Q] ",
    "document_prefix": "[D] ",
    "query_length": 12,
    "document_length": 16,
    "attend_to_expansion_tokens": False,
    "skiplist_words": [".", ","],
    "do_query_expansion": True,
}


@pytest.fixture
def folder(tmp_path, save_checkpoint):
    """Save a folder as PyLate does: markers are added to the tokenizer, and each Dense module projects tokens."""

    def save(sizes=(8,), class_name="BertModel", **changes):
        directory = save_checkpoint(tmp_path / "colbert", class_name)
        tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        tokenizer.add_tokens(["[Q] ", "[D] "])
        network = transformers.AutoModel.from_pretrained(directory)
        network.resize_token_embeddings(len(tokenizer))
        tokenizer.pad_token = tokenizer.mask_token  # as PyLate leaves it
        network.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
        modules = [{"idx": 0, "name": "0", "path": "", "type": TYPES[0]}]
        for number, (width, size) in enumerate(zip((32, *sizes), sizes, strict=False), 1):
            path = f"{number}_Dense"
            write_json(directory / path / "config.json", dense_config(width, size))
            weight = torch.randn(size, width, generator=torch.Generator().manual_seed(number)) / 4
            save_file({"linear.weight": weight}, directory / path / "model.safetensors")
            modules.append({"idx": number, "name": str(number), "path": path, "type": TYPES[1]})
        write_json(directory / "modules.json", modules)
        write_json(directory / "sentence_bert_config.json", {"max_seq_length": 15, "do_lower_case": False})
        config = {key: value for key, value in (CONFIG | changes).items() if value is not ...}
        write_json(directory / "config_sentence_transformers.json", config)
        return directory

    return save


def dense_config(width, size):
    function = "torch.nn.modules.linear.Identity"
    return {
        **{"in_features": width, "out_features": size, "bias": False, "activation_function": function},
        "use_residual": False,
    }


@functools.cache
def pylate_parts(directory):
    kinds = (transformers.AutoTokenizer, transformers.AutoModel)
    tokenizer, network = (kind.from_pretrained(directory) for kind in kinds)
    return tokenizer, network.eval()


def pylate_vectors(directory, text, *, is_query, config=CONFIG):
    """Return the vectors of a text by the steps of PyLate's `tokenize` and `encode`."""
    tokenizer, network = pylate_parts(directory)
    length = config["query_length" if is_query else "document_length"]
    marker = config["query_prefix" if is_query else "document_prefix"]
    tokenizer.pad_token_id = tokenizer.mask_token_id
    expands = is_query and config["do_query_expansion"]
    padding = {"padding": "max_length"} if expands else {}
    found = tokenizer(text, truncation=True, max_length=length - bool(marker), return_tensors="pt", **padding)
    ids, mask = found["input_ids"], found["attention_mask"]
    if marker:
        marker_id = torch.tensor([[tokenizer.convert_tokens_to_ids(marker)]])
        ids = torch.cat([ids[:, :1], marker_id, ids[:, 1:]], dim=1)
        mask = torch.cat([mask[:, :1], torch.tensor([[1]]), mask[:, 1:]], dim=1)
    if is_query and config["attend_to_expansion_tokens"]:
        mask = torch.ones_like(mask)
    with torch.no_grad():
        states = network(input_ids=ids, attention_mask=mask).last_hidden_state
    number = 1
    while (directory / f"{number}_Dense").is_dir():
        weight = load_file(directory / f"{number}_Dense/model.safetensors")["linear.weight"]
        states, number = states @ weight.T, number + 1
    skipped = torch.tensor([tokenizer.convert_tokens_to_ids(word) for word in config["skiplist_words"]])
    kept = torch.ones_like(mask).bool() if is_query else mask.bool() & ~torch.isin(ids, skipped)
    return torch.nn.functional.normalize(states[kept], dim=1).numpy()


def served_vectors(directory, texts=TEXTS, **options):
    """Return the vectors of an exported graph for each text, all texts in one batch."""
    task = directory.load_task()
    task = type(task)(task.tokenizer, task.settings, **options)
    run = graph_run(directory.model_path, execution=directory.manifest.execution)
    return [item.vectors for item in predict(task, texts, run)]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attend_to_expansion_tokens": True},
        {"do_query_expansion": False},
        {"query_prefix": "", "document_prefix": ""},
        {"skiplist_words": []},
        {"query_length": 20, "document_length": 9},
    ],
)
def test_vectors_are_those_of_pylate(folder, export, changes):
    """The exported model gives the vectors of PyLate for queries and documents."""
    checkpoint = folder(**changes)

    directory = export(checkpoint)

    assert (directory.manifest.task, directory.manifest.hidden_size) == ("token-embedding", 8)
    for is_query in (True, False):
        found = served_vectors(directory, is_query=is_query)
        for text, vectors in zip(TEXTS, found, strict=True):
            expected = pylate_vectors(checkpoint, text, is_query=is_query, config=CONFIG | changes)
            np.testing.assert_allclose(vectors, expected, atol=1e-4)


def test_several_projections(folder, export):
    """Each Dense module is a layer."""
    checkpoint = folder(sizes=(16, 4))

    directory = export(checkpoint)

    found = served_vectors(directory, TEXTS[:1])[0]
    np.testing.assert_allclose(found, pylate_vectors(checkpoint, TEXTS[0], is_query=False), atol=1e-4)
    assert directory.manifest.settings.layers == ("dense identity", "dense identity")


def test_defaults_of_pylate(folder):
    """Settings that a folder does not state are PyLate's."""
    names = ("query_length", "document_length", "do_query_expansion", "attend_to_expansion_tokens", "skiplist_words")
    checkpoint = folder(**dict.fromkeys(names, ...), query_prefix=None)
    path = checkpoint / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_position_embeddings": 200}))

    settings = read_source(checkpoint).task.settings

    assert (settings.query_length, settings.document_length, settings.max_seq_length) == (32, 180, 180)
    assert settings.skiplist_words == tuple(string.punctuation)
    assert (settings.do_query_expansion, settings.attend_to_expansion_tokens) == (True, False)
    assert settings.query_prefix == "[Q] "


def test_ranking_is_maxsim(folder, export):
    """Scores are the sums of PyLate's MaxSim, for documents that fit into a window."""
    checkpoint = folder()
    directory = export(checkpoint)
    ranking = create_ranking(directory.load_task())

    (scores,) = predict(ranking, [RankingExample("the bakery", tuple(TEXTS[:3]))], graph_run(directory.model_path))

    query = pylate_vectors(checkpoint, "the bakery", is_query=True)
    documents = [pylate_vectors(checkpoint, text, is_query=False) for text in TEXTS[:2]]
    expected = [(query @ item.T).max(axis=1).sum() for item in documents]
    np.testing.assert_allclose(scores[:2], expected, atol=1e-4)


def pylate_similarities(checkpoint, pairs, prompts):
    """Return PyLate's MaxSim of each pair: of its query, which is cut, and of its document."""
    found = []
    for query, document in pairs:
        asked = pylate_vectors(checkpoint, prompts.get("query", "") + query, is_query=True)
        vectors = pylate_vectors(checkpoint, prompts.get("document", "") + document, is_query=False)
        found.append(float((asked @ vectors.T).max(axis=1).sum()))
    return found


@pytest.mark.parametrize("prompts", [{}, {"query": "the ", "document": "a "}])
def test_scores(prompts, folder, export, tmp_path, monkeypatch, capsys):
    """The export and training.evaluate score PyLate's MaxSim of query and document against the labels."""
    pairs = [*PAIRS, ("a b c d e f g h i j k l m", "the cat")]
    labels = [*LABELS, 0.5]
    changes = {"prompts": prompts} if prompts else {}
    checkpoint, dev = folder(**changes), write_pairs(tmp_path / "dev.tsv", pairs, labels)
    lines = []

    directory = export(checkpoint, data=ExportData(dev=(dev,)), lines=lines)

    found = pylate_similarities(checkpoint, pairs, prompts)
    expected = {
        "spearman": scipy.stats.spearmanr(labels, found).statistic,
        "pearson": scipy.stats.pearsonr(labels, found).statistic,
    }
    scores = directory.manifest.scores
    assert scores["evaluated_on"] == "41 pairs of dev.tsv"
    assert all(item["scores"] == pytest.approx(expected, abs=1e-4) for item in scores["quality"].values())
    assert directory.manifest.truncate
    assert next(line for line in lines if line.startswith("truncated to query_length 12: "))
    monkeypatch.setattr("sys.argv", ["evaluate", str(checkpoint), "--data", str(dev)])
    evaluate()
    said = capsys.readouterr().out
    assert f" {100 * expected['spearman']:.2f} " in said
    assert " of 41 pairs were cut to fit query_length 12" in said


def test_scores_of_long_documents(folder, export, tmp_path):
    """Long documents are scored as the server ranks them: in windows, and not cut."""
    pairs = [(query, " ".join([document] * 6)) for query, document in PAIRS]
    data = ExportData(dev=(write_pairs(tmp_path / "dev.tsv", pairs),))

    directory = export(folder(), data=data)

    ranking = create_ranking(directory.load_task())
    ranked = predict(ranking, [RankingExample(one, (other,)) for one, other in pairs], graph_run(directory.model_path))
    expected = scipy.stats.spearmanr(LABELS, np.concatenate(ranked)).statistic
    assert directory.manifest.scores["quality"]["fp32"]["scores"]["spearman"] == pytest.approx(expected, abs=1e-4)
    assert not directory.manifest.truncate


def test_vectors_that_cannot_be_compared_have_no_scores(export, tmp_path):
    """Pairs are refused for vectors without length 1, and the error states what to do."""
    data = ExportData(dev=(write_pairs(tmp_path / "dev.tsv"),))

    with pytest.raises(ValueError, match=r"cannot compare pairs of texts by MaxSim: .* export it with --normalize"):
        export("plain", task="token-embedding", data=data)


def test_last_hidden_states(checkpoints, export):
    """Any encoder exported with --task token-embedding gives its last hidden states; --normalize makes them unit."""
    network = transformers.AutoModel.from_pretrained(checkpoints["plain"]).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoints["plain"])
    with torch.no_grad():
        expected = [network(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].numpy() for text in TEXTS]

    for normalize in (False, True):
        directory = export("plain", to=f"{normalize}/1", task="token-embedding", settings={"normalize": normalize})
        for found, states in zip(served_vectors(directory), expected, strict=True):
            length = np.linalg.norm(states, axis=1, keepdims=True) if normalize else 1
            np.testing.assert_allclose(found, states / length, atol=1e-4)


UNSUPPORTED = [kind for kind in CONFIGS if kind.startswith(("deberta", "nomic"))]


@pytest.mark.parametrize("kind", sorted(set(CONFIGS) - set(UNSUPPORTED)))
def test_masks_that_no_token_attends_to(kind, tmp_path):
    """The graph gives such tokens the states of transformers."""
    reference = create(kind, "embedding", tmp_path)
    run = graph_run(build_graph(read_network(tmp_path, "token-embedding")[1], GraphPrecision(), GraphVariant()))
    ids, mask, types = batch(kind, 1, 8 if kind.startswith("modernbert") else 12)
    mask[:, 5:] = 0
    expected = reference_outputs(reference, "embedding", ids.clamp(min=5), mask, types)["last_hidden_state"]

    arrays = {"input_ids": ids.clamp(min=5), "attention_mask": mask, "token_type_ids": types}
    found = run({name: item.numpy().astype(np.int32) for name, item in arrays.items()})

    np.testing.assert_allclose(found["token_embeddings"], expected, atol=1e-4)


@pytest.mark.parametrize("kind", [*UNSUPPORTED, "modernbert"])
def test_families_whose_masks_differ_are_refused(kind, tmp_path):
    """Query expansion is refused where the graph would give masks other states than transformers."""
    create(kind, "embedding", tmp_path)
    settings = {"do_query_expansion": True, "query_length": 20}

    with pytest.raises(ValueError, match="unsupported do_query_expansion `true`"):
        read_source(tmp_path, task="token-embedding", settings=settings)
    read_source(tmp_path, task="token-embedding", settings=settings | {"attend_to_expansion_tokens": True})


@pytest.mark.parametrize(
    ("path", "changes", "message"),
    [
        ("config_sentence_transformers.json", {"document_length": 100}, "exceeds the 40 positions"),
        ("config_sentence_transformers.json", {"query_prefix": "[X] "}, r"query_prefix `\[X\] ` is no token"),
    ],
)
def test_unknown_values_are_refused(folder, path, changes, message):
    """A value that changes vectors and cannot be followed is an error of one line."""
    checkpoint = folder()
    changed(path, **changes)(checkpoint)

    with pytest.raises(ValueError, match=message):
        read_source(checkpoint).load_model()
