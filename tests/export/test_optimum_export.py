"""Families that Bertline does not write: exported with Optimum, equal to transformers, and served."""

import functools
import shutil

import numpy as np
import onnx
import pytest
import torch
import transformers

from bertline import Client
from export import ExportConfig, QualityLimits, export_checkpoint, graph_run
from export.autotune.model_directory import tune_model_directory
from export.autotune.workload import Workload
from export.evaluation_set import ExportData
from export.html_report import describe_speed
from export.optimum_export.exporter import quiet
from export.reporter import Reporter
from export.source import read_source
from tasks.bundle.model_directory import read_model_directory
from tasks.features import collate
from tasks.text.tokenizer_files import TOKENIZER_FILE
from tests.export.conftest import changed
from tests.families import ROBERTA, SETTINGS, SMALL
from tests.serving.processes import listening
from tests.toy_tokenizers import TEXT, byte_bpe, wordpiece

POSITIONS = {**SMALL, "max_position_embeddings": 40}
CONFIGS = {
    "roformer": {**POSITIONS, "embedding_size": 32},
    "big_bird": POSITIONS,
    "deberta": {**POSITIONS, "type_vocab_size": 0, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "data2vec-text": ROBERTA,
    "esm": {**SMALL, "max_position_embeddings": 42, "pad_token_id": 1, "mask_token_id": 4},
    "megatron-bert": POSITIONS,
    "mobilebert": {**POSITIONS, "embedding_size": 16, "intra_bottleneck_size": 32},
    "rembert": {**POSITIONS, "input_embedding_size": 16, "output_embedding_size": 24},
    "squeezebert": {**POSITIONS, "embedding_size": 32},
    "convbert": {**POSITIONS, "embedding_size": 32},
    "ibert": ROBERTA,
    "xlm": {"emb_dim": 32, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 40},
}
BACKENDS = {"data2vec-text": byte_bpe, "ibert": byte_bpe, "esm": byte_bpe, "deberta": wordpiece}
CLASSES = {
    "embedding": "AutoModel",
    "masked-lm": "AutoModelForMaskedLM",
    "classification": "AutoModelForSequenceClassification",
    "regression": "AutoModelForSequenceClassification",
    "tagging": "AutoModelForTokenClassification",
    "spans": "AutoModelForQuestionAnswering",
    "multiple-choice": "AutoModelForMultipleChoice",
}
WITHOUT_TYPES = ("big_bird", "data2vec-text", "ibert", "esm", "deberta")
"""Families whose network or tokenizer has no token types."""
PAD = {"data2vec-text": 1, "ibert": 1, "esm": 1}
SHAPES = [(1, 1), (2, 20), (7, 32)]


@functools.cache
def tokenizer_of(kind):
    """Return a tokenizer; training one twice gives two vocabularies."""
    return BACKENDS.get(kind, wordpiece)()


def create(kind, task, directory, **changes):
    """Write a checkpoint with random weights by transformers, and return its network."""
    backend = tokenizer_of(kind)
    labels = {"regression": {"num_labels": 1}, "classification": {"num_labels": 3}, "tagging": {"num_labels": 3}}
    config = transformers.AutoConfig.for_model(
        kind, vocab_size=backend.get_vocab_size(), **CONFIGS[kind] | changes, **labels.get(task, {})
    )
    torch.manual_seed(0)
    with quiet():  # torch warns about code of some families
        model = getattr(transformers, CLASSES[task]).from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():  # LayerNorm and biases are constant in new networks
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(directory)
    backend.save(str(directory / TOKENIZER_FILE))
    return model


def settings(task):
    """Return settings of a task that its checkpoint does not have."""
    found = {key: tuple(value) if isinstance(value, list) else value for key, value in SETTINGS.get(task, {}).items()}
    return found | {"max_seq_length": 32}


def export(folder, task, *, precision="fp32", tune=False, data=None, reporter=None, **changes):
    """Export the checkpoint of a folder to `models/<task>/1` next to it."""
    options = {"reporter": reporter} if reporter else {}
    return export_checkpoint(
        folder / "checkpoint",
        folder / "models" / task / "1",
        ExportConfig(precision=precision, tune=tune, truncate="yes", limits=QualityLimits(min_cosine=0.9)),
        task=task,
        settings=settings(task) | changes,
        data=data,
        **options,
    )


def random_batch(kind, vocab_size, rows, length):
    """Return the inputs of a batch with padding at the ends of rows."""
    rng = np.random.default_rng(1)
    arrays = {name: np.zeros((rows, length), np.int32) for name in ("input_ids", "attention_mask", "token_type_ids")}
    arrays["input_ids"][:] = rng.integers(0, vocab_size, (rows, length))
    arrays["attention_mask"][:] = 1
    arrays["token_type_ids"][:, length // 2 :] = 1
    for row in range(1, rows):
        arrays["input_ids"][row, -row * 4 :], arrays["attention_mask"][row, -row * 4 :] = PAD.get(kind, 0), 0
    return arrays


def transformers_outputs(kind, model, task, arrays):
    """Return the outputs of transformers under our names, with mean pooling for embeddings."""
    inputs = {name: torch.from_numpy(values).long() for name, values in arrays.items()}
    mask = inputs["attention_mask"]
    if kind in WITHOUT_TYPES:
        del inputs["token_type_ids"]
    if task == "multiple-choice":
        inputs = {name: values[:, None] for name, values in inputs.items()}
    with torch.no_grad():
        found = model(**inputs)
    if task == "embedding":
        sums = (found.last_hidden_state * mask[..., None]).sum(1)
        return {"sentence_embedding": (sums / mask.sum(1, keepdim=True)).numpy()}
    if task == "multiple-choice":
        return {"logits": found.logits[:, 0].numpy()}
    return {name: found[name].numpy() for name in (("start_logits", "end_logits") if task == "spans" else ("logits",))}


def check_equals_transformers(kind, task, folder):
    """Export in fp32 and compare every output with transformers, in batches of any shape."""
    model = create(kind, task, folder / "checkpoint")
    directory = export(folder, task, **({"pooling": "mean"} if task == "embedding" else {}))
    run, known = graph_run(directory.model_path), directory.load_task()

    assert directory.manifest.provenance["graph"]["exporter"] == "optimum"
    for rows, length in SHAPES:
        arrays = random_batch(kind, directory.manifest.vocab_size, rows, length)
        kept = arrays["attention_mask"].astype(bool) if known.token_outputs else slice(None)
        found = run(arrays)
        for name, expected in transformers_outputs(kind, model, task, arrays).items():
            np.testing.assert_allclose(found[name][kept], expected[kept], atol=1e-4, rtol=1e-4)


SLOW = [pytest.param(task, marks=pytest.mark.slow) for task in sorted(CLASSES.keys() - {"spans", "multiple-choice"})]


@pytest.mark.parametrize("task", ["spans", "multiple-choice", *SLOW])
def test_every_task_equals_transformers(task, tmp_path):
    """The graph of a RoFormer gives the outputs of transformers, to 1e-4."""
    check_equals_transformers("roformer", task, tmp_path)


def test_sparse_vectors(tmp_path):
    """The graph of a RoFormer gives the weights of SPLADE for the logits of transformers."""
    model = create("roformer", "masked-lm", tmp_path / "checkpoint")
    directory = export(tmp_path, "sparse-embedding")
    run = graph_run(directory.model_path)

    for rows, length in SHAPES:
        arrays = random_batch("roformer", directory.manifest.vocab_size, rows, length)
        logits = transformers_outputs("roformer", model, "masked-lm", arrays)["logits"]
        expected = np.log1p(np.maximum(logits, 0) * arrays["attention_mask"][..., None]).max(1)
        np.testing.assert_allclose(run(arrays)["sparse_embedding"], expected, atol=1e-4, rtol=1e-4)


def test_token_types_follow_transformers(tmp_path):
    """Token types are left out where the tokenizer of the family has none."""
    check_equals_transformers("big_bird", "classification", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(CLASSES))
@pytest.mark.parametrize("kind", sorted(CONFIGS.keys() - {"roformer"}))
def test_every_family_equals_transformers(kind, task, tmp_path):
    """Each family and task that transformers has equals transformers; others are refused in one line."""
    config = transformers.AutoConfig.for_model(kind)
    if type(config) not in getattr(transformers, CLASSES[task])._model_mapping:
        create(kind, "embedding", tmp_path / "checkpoint")
        with pytest.raises(ValueError, match=f"transformers has no network of a `{kind}` for `{task}`"):
            export(tmp_path, task)
    else:
        check_equals_transformers(kind, task, tmp_path)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Export a RoFormer for vectors in fp32 and for labels in int8; return folder, networks and messages."""
    folder, networks, lines = tmp_path_factory.mktemp("served"), {}, []
    (folder / "texts.txt").write_text("\n".join(TEXT[:5]) + "\n", encoding="utf-8")
    for task, precision in {"embedding": "fp32", "classification": "int8"}.items():
        networks[task] = create("roformer", task, folder / task / "checkpoint")
        export(
            folder / task,
            task,
            precision=precision,
            data=ExportData(texts=folder / "texts.txt"),
            reporter=Reporter(lines.append),
            **({"pooling": ("cls", "max"), "normalize": True} if task == "embedding" else {}),
        )
        shutil.copytree(folder / task / "models" / task, folder / "models" / task)
    return folder, networks, lines


def test_served_equals_transformers(served):
    """The server gives the vectors of transformers, and the labels that the int8 graph was evaluated with."""
    folder, networks, _ = served
    directories = {task: read_model_directory(folder / "models" / task / "1") for task in networks}
    features = [items[0] for items in directories["embedding"].load_task().encode(TEXT[:5])]
    with torch.no_grad():
        hidden = [
            networks["embedding"](
                input_ids=torch.tensor(item.input_ids)[None], token_type_ids=torch.tensor(item.token_type_ids)[None]
            ).last_hidden_state[0]
            for item in features
        ]
    vectors = torch.nn.functional.normalize(torch.stack([torch.cat([item[0], item.amax(0)]) for item in hidden]))
    int8 = graph_run(
        directories["classification"].model_path, execution=directories["classification"].manifest.execution
    )
    logits = [int8(collate([item]))["logits"][0] for item in features]

    with listening(folder / "models") as (_, target, _), Client(target) as client:
        found = client.embed(TEXT[:5], model="embedding", truncate=True)
        labels = [client.classify([text], model="classification", truncate=True)[0].labels for text in TEXT[:5]]

    np.testing.assert_allclose(found, vectors, atol=1e-4)
    for scores, row in zip(labels, logits, strict=True):
        expected = np.exp(row) / np.exp(row).sum()
        np.testing.assert_allclose([item.score for item in scores], sorted(expected, reverse=True), atol=1e-4)


def test_the_manifest_says_who_wrote_the_graph(served):
    """Command, manifest and graph state that Optimum exported, and what its int8 is."""
    folder, _, lines = served
    directory = read_model_directory(folder / "models/classification/1")
    graph = directory.manifest.provenance["graph"]
    operators = {node.op_type for node in onnx.load(directory.model_path).graph.node}

    assert any(line.startswith("Bertline has no graph for `roformer`") for line in lines)
    assert graph["exporter"] == "optimum"
    assert (graph["name"], graph["variant"], graph["pads"]) == ("dynamic int8", {}, True)
    assert "MatMulInteger" in operators
    assert directory.manifest.inputs == ("input_ids", "attention_mask", "token_type_ids")
    assert directory.manifest.provenance["checkpoint"]["config"]["model_type"] == "roformer"
    assert any("dynamic int8 is not calibrated" in line for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["embedding", "classification"])
def test_tuning_chooses_settings(task, served, tmp_path):
    """Tuning times execution settings, and leaves the graph as it is."""
    folder, _, _ = served
    shutil.copytree(folder / "models" / task, tmp_path / "models" / task)
    before = read_model_directory(tmp_path / "models" / task / "1")
    arrays = random_batch("roformer", before.manifest.vocab_size, 3, 20)
    expected = graph_run(before.model_path)(arrays)

    trials = tune_model_directory(before.path, Workload((3, 9, 30), before.manifest.vocab_size))
    after = read_model_directory(before.path)

    assert {trial.name for trial in trials} >= {"max_batch_tokens", "finalists"}
    assert "attention" not in {trial.name for trial in trials}
    assert after.manifest.provenance["graph"]["exporter"] == "optimum"
    for name, values in graph_run(after.model_path)(arrays).items():
        np.testing.assert_allclose(values, expected[name], atol=1e-6)


@pytest.mark.slow
def test_networks_that_read_padding_get_batches_of_one(tmp_path):
    """MobileBERT reads the embedding of the next token, also of padding, so each text is served alone."""
    create("mobilebert", "embedding", tmp_path / "checkpoint")
    lines = []

    directory = export(tmp_path, "embedding", precision="int8", tune=True, reporter=Reporter(lines.append))
    trials = tune_model_directory(directory.path, Workload((3, 9, 30), directory.manifest.vocab_size))
    manifest = read_model_directory(directory.path).manifest

    assert any(line.startswith("padding changes the outputs") for line in lines)
    assert not manifest.provenance["graph"]["pads"]
    assert manifest.execution.max_batch_tokens == 1
    assert {trial.value for trial in trials if trial.name == "max_batch_tokens"} == {1}
    assert "tokens/s" in describe_speed(manifest)


@pytest.mark.slow
def test_folders_of_sentence_transformers(tmp_path):
    """Pooling, Dense and Normalize come out of the graph, as from sentence-transformers."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    modules = sentence_transformers.models
    create("roformer", "embedding", tmp_path / "network")
    transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "network" / TOKENIZER_FILE), pad_token="[PAD]", mask_token="[MASK]"
    ).save_pretrained(tmp_path / "network")
    model = sentence_transformers.SentenceTransformer(
        modules=[
            (transformer := modules.Transformer(str(tmp_path / "network"), max_seq_length=32)),
            modules.Pooling(transformer.get_word_embedding_dimension(), "mean"),
            modules.Dense(32, 12),
            modules.Normalize(),
        ],
        device="cpu",
    )
    model.save(str(tmp_path / "checkpoint"))

    directory = export_checkpoint(tmp_path / "checkpoint", tmp_path / "a/1", ExportConfig(tune=False))
    task, run = directory.load_task(), graph_run(directory.model_path)
    found = [run(collate(items))["sentence_embedding"][0] for items in task.encode(TEXT[:5])]

    assert directory.manifest.hidden_size == 12
    np.testing.assert_allclose(found, model.encode(TEXT[:5]), atol=1e-4)


def file(name, text):
    """Return a function that writes a file."""
    return lambda directory: (directory / name).write_text(text)


MISTAKES = {
    "decoder": (
        changed("config.json", model_type="gpt2"),
        r"model_type `gpt2` \(supported: bert, .*shows that it is an encoder$",
    ),
    "unknown": (
        changed("config.json", model_type="own-bert"),
        "model_type `own-bert` .*transformers .* does not know it$",
    ),
    "code": (
        changed("config.json", auto_map={"AutoModel": "modeling.Own"}),
        r"separate code \(auto_map\), which is not run$",
    ),
    "cross-attention": (changed("config.json", is_decoder=True), "not an encoder: .* says `is_decoder`$"),
    "no tokenizer": (lambda directory: (directory / TOKENIZER_FILE).unlink(), "no tokenizer.json, which a `roformer`"),
    "jieba": (file("tokenizer_config.json", '{"tokenizer_class": "RoFormerTokenizer"}'), "cuts words with jieba"),
    "layers lacking": (
        changed("config.json", num_hidden_layers=3),
        r"cannot do `classification`: it lacks `.*encoder\.layer\.2\.",
    ),
    "positions": (changed("config.json", max_position_embeddings=20), "the 20 positions of"),
}


@pytest.mark.parametrize("mistake", sorted(MISTAKES))
def test_what_cannot_be_exported_is_refused_in_one_line(mistake, served, tmp_path):
    """A checkpoint that transformers or Optimum would read wrongly is refused by name of file, key or weight."""
    change, message = MISTAKES[mistake]
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(served[0] / "classification/checkpoint", checkpoint)
    change(checkpoint)

    with pytest.raises(ValueError, match=message) as raised:
        read_source(checkpoint, settings={"max_seq_length": 32}).load_model()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("precision", "target", "mixed", "flag"),
    [
        ("int8", "--target cpu", True, "--mixed"),
        ("fp16", "--target cuda", False, "--target cuda"),
        ("fp32", "--engine openvino", False, "--engine openvino"),
    ],
)
def test_other_ways_are_refused(precision, target, mixed, flag, served):
    """Flags that only graphs of Bertline's follow are refused by name."""
    source = read_source(served[0] / "embedding/checkpoint")

    with pytest.raises(ValueError, match=f"^{flag} is not for a `roformer`: Optimum exports it"):
        source.family.check(precision, target, mixed=mixed)


def test_sparse_attention_is_refused(tmp_path):
    """BigBird's random blocks are not computed; below their length its attention is full."""
    create("big_bird", "embedding", tmp_path / "checkpoint", max_position_embeddings=800)

    with pytest.raises(ValueError, match="`block_sparse` is not supported above 704 tokens; give --max-seq-length 704"):
        read_source(tmp_path / "checkpoint").load_model()


UNSUPPORTED = {
    "ernie": (POSITIONS, "^Optimum cannot export a `ernie`: its exporter does not know this family$"),
    "fnet": (POSITIONS, "^Optimum cannot export a `fnet`: its exporter does not know this family$"),
    "longformer": ({**ROBERTA, "attention_window": 8}, "^graph rejected: it fails in a batch of 1 x 1 tokens: "),
    "nystromformer": (
        {**POSITIONS, "num_landmarks": 4, "segment_means_seq_len": 32},
        "^a `nystromformer` fails with some lengths, even in PyTorch: ",
    ),
}


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind > "g")) for kind in UNSUPPORTED])
def test_families_that_cannot_be_exported(kind, tmp_path, monkeypatch):
    """A family that Optimum does not know, or whose graph depends on the length, is refused in one line."""
    shape, message = UNSUPPORTED[kind]
    monkeypatch.setitem(CONFIGS, kind, shape)
    create(kind, "embedding", tmp_path / "checkpoint")

    with pytest.raises(ValueError, match=message) as raised:
        export(tmp_path, "embedding")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "models/embedding/1").exists()
