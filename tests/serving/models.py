"""Small model directories: a hand-made graph that numpy computes as well.

hidden = embedding[input_ids] + types[token_type_ids]; last = hidden + its mean over attended tokens.
Hence a padded row, a swapped row or a missing mask shows in the result.
"""

import json
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tasks import create_task, settings_from_dict
from tasks.base import Task
from tasks.bundle.files import sha256
from tasks.bundle.manifest import MANIFEST_FILE, Execution, Manifest
from tasks.bundle.model_directory import MODEL_FILE
from tasks.features import INPUT_NAMES
from tasks.text.tokenizer import Tokenizer
from tasks.text.tokenizer_files import TOKENIZER_FILE, build_tokenizer

WORDS = ["the", "cat", "dog", "bird", "river", "tree", "who", "what", "sees", "likes"]
WORDS += ["near", "under", "runs", "sleeps", "big", "small", "red", "green", "old", "new"]
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "?", "##s", *WORDS]

SETTINGS = {
    "embedding": {
        "max_seq_length": 32,
        "pooling": "mean",
        "prompts": {"query": "the old ", "document": "", "long": "the old " * 8},
    },
    "classification": {"max_seq_length": 32, "labels": ["no", "maybe", "entailment"]},
    "spans": {"max_seq_length": 16, "doc_stride": 4, "max_query_length": 6, "n_best_size": 5, "unanswerable": True},
    "masked-lm": {"max_seq_length": 32},
    "token-embedding": {
        "max_seq_length": 16,
        "normalize": True,
        "query_length": 8,
        "query_prefix": "?",
        "document_prefix": "##s",
        "skiplist_words": ["."],
        "do_query_expansion": True,
        "prompts": {"query": "the old "},
    },
    "sparse-embedding": {"max_seq_length": 32, "prompts": {"query": "the old "}},
    "regression": {"max_seq_length": 32},
    "multiple-choice": {"max_seq_length": 16},
    "tagging": {"max_seq_length": 16, "doc_stride": 6, "labels": ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]},
}


@dataclass(frozen=True)
class Weights:
    """Weights of the graph."""

    embedding: np.ndarray
    types: np.ndarray
    head: np.ndarray

    @classmethod
    def random(cls, seed, hidden_size, head_size):
        rng = np.random.default_rng(seed)
        shapes = (len(VOCAB), hidden_size), (2, hidden_size), (hidden_size, head_size)
        return cls(*(rng.normal(size=shape).astype(np.float32) for shape in shapes))

    def hidden(self, features):
        """Return the hidden states of one sequence, [length, hidden]."""
        hidden = self.embedding[features.input_ids] + self.types[features.token_type_ids]
        return hidden + hidden[: len(hidden) - getattr(features, "num_unattended", 0)].mean(axis=0)


@dataclass(frozen=True)
class Reference:
    """Task and weights of a written model; computes its predictions with numpy."""

    task: Task
    weights: Weights

    def outputs(self, features):
        hidden = self.weights.hidden(features)
        if self.task.name == "embedding":
            return {"sentence_embedding": hidden.mean(axis=0)}
        if self.task.name == "token-embedding":
            return {"token_embeddings": hidden / np.linalg.norm(hidden, axis=-1, keepdims=True)}
        logits = hidden @ self.weights.head
        if self.task.name in ("classification", "regression"):
            return {"logits": logits[0]}
        if self.task.name == "multiple-choice":
            return {"logits": logits[0, 0]}
        if self.task.name in ("masked-lm", "tagging"):
            return {"logits": logits}
        if self.task.name == "sparse-embedding":
            return {"sparse_embedding": np.log1p(np.maximum(logits, 0)).max(axis=0)}
        return {"start_logits": logits[:, 0], "end_logits": logits[:, 1]}

    def predict(self, examples, truncate=True, **changes):
        """Return the prediction as in evaluation, with changed settings or task fields."""
        own = {name: changes.pop(name) for name in list(changes) if name in vars(self.task)}
        task = replace(self.task.with_settings(**changes), **own)
        windows = task.encode(examples, truncate=truncate)
        return [
            task.decode(example, items, [self.outputs(item) for item in items])
            for example, items in zip(examples, windows, strict=True)
        ]


def write_model(
    models, name="tiny", version="1", task="embedding", *, hidden_size=8, passes=0, seed=0, edit=None, **changes
):
    """Write `models/<name>/<version>`.

    Args:
        passes: multiplications with the identity: they make the graph slow and change nothing.
        edit: changes the weights first.
        changes: keys of the manifest to change.

    Returns:
        The reference for its predictions.
    """
    directory = models / name / version
    directory.mkdir(parents=True)
    settings = settings_from_dict(task, SETTINGS[task])
    tokenizer = build_tokenizer(VOCAB)
    tokenizer.save(str(directory / TOKENIZER_FILE))
    num_ids = changes.get("vocab_size", len(VOCAB))
    head_size = {"classification": 3, "spans": 2, "masked-lm": num_ids, "sparse-embedding": num_ids, "tagging": 5}.get(
        task, 1
    )
    weights = Weights.random(seed, hidden_size, head_size)
    if edit:
        edit(weights)
    onnx.save(make_graph(task, weights, passes), directory / MODEL_FILE)
    values = {
        "name": name,
        "version": version,
        "task": task,
        "settings": settings,
        "precision": "fp32",
        "opset": 17,
        "hidden_size": hidden_size,
        "vocab_size": len(VOCAB),
        "inputs": INPUT_NAMES,
        "outputs": _output_names(task),
        "files": {item: sha256(directory / item) for item in (TOKENIZER_FILE, MODEL_FILE)},
        "execution": Execution(max_batch_tokens=64),
    }
    (directory / MANIFEST_FILE).write_text(Manifest(**values | changes).to_json(), encoding="utf-8")
    return Reference(create_task(task, Tokenizer(tokenizer), settings), weights)


def edit_manifest(directory, **changes):
    """Change keys of a written manifest."""
    path = directory / MANIFEST_FILE
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), encoding="utf-8")


def _output_names(task):
    names = {
        "embedding": ("sentence_embedding",),
        "sparse-embedding": ("sparse_embedding",),
        "token-embedding": ("token_embeddings",),
        "spans": ("start_logits", "end_logits"),
    }
    return names.get(task, ("logits",))


def make_endless(directory):
    """Put a loop that never ends before the embeddings of a written model."""
    graph = onnx.load(directory / MODEL_FILE)
    body = onnx.parser.parse_graph(
        "body (int64 step, bool going, float sum) => (bool goes_on, float more) "
        "{ goes_on = Identity(going) more = Add(sum, sum) }"
    )
    loop = helper.make_node("Loop", ["", "true", "zero"], ["endless"], body=body)
    graph.graph.node.insert(0, loop)
    next(node for node in graph.graph.node if node.op_type == "Gather").input[0] = "moved"
    graph.graph.node.insert(1, helper.make_node("Add", ["embedding", "endless"], ["moved"]))
    constants = {"true": np.array(True), "zero": np.array(0, np.float32)}
    graph.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    onnx.save(graph, directory / MODEL_FILE)
    edit_manifest(directory, files={item: sha256(directory / item) for item in (TOKENIZER_FILE, MODEL_FILE)})


def make_graph(task, weights, passes):
    """Return the graph of a task, with dynamic axes for batch and length."""
    hidden_size = weights.embedding.shape[1]
    constants = {
        "embedding": weights.embedding,
        "types": weights.types,
        "length_axis": np.array([1]),
        "last_axis": np.array([2]),
        "first": np.array(0),
    }
    nodes = [
        helper.make_node("Gather", ["embedding", "input_ids"], ["words"]),
        helper.make_node("Gather", ["types", "token_type_ids"], ["token_types"]),
        helper.make_node("Add", ["words", "token_types"], ["pass0"]),
    ]
    if passes:
        constants["identity"] = np.eye(hidden_size, dtype=np.float32)
        nodes += [helper.make_node("MatMul", [f"pass{i}", "identity"], [f"pass{i + 1}"]) for i in range(passes)]
    hidden = f"pass{passes}"
    last = "last"
    nodes += [
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last_axis"], ["mask3"]),
        helper.make_node("Mul", [hidden, "mask3"], ["attended"]),
        helper.make_node("ReduceSum", ["attended", "length_axis"], ["sum"], keepdims=1),
        helper.make_node("ReduceSum", ["mask3", "length_axis"], ["count"], keepdims=1),
        helper.make_node("Div", ["sum", "count"], ["mean"]),
        helper.make_node("Add", [hidden, "mean"], [last]),
    ]
    if task == "embedding":
        nodes += [
            helper.make_node("Mul", [last, "mask3"], ["attended_last"]),
            helper.make_node("ReduceSum", ["attended_last", "length_axis"], ["last_sum"], keepdims=0),
            helper.make_node("ReduceSum", ["mask", "length_axis"], ["num_tokens"], keepdims=1),
            helper.make_node("Div", ["last_sum", "num_tokens"], ["sentence_embedding"]),
        ]
        outputs = {"sentence_embedding": ["batch", hidden_size]}
    elif task in ("classification", "regression", "multiple-choice"):
        single = task == "multiple-choice"
        constants["head"] = weights.head[:, 0] if single else weights.head
        nodes += [
            helper.make_node("Gather", [last, "first"], ["cls"], axis=1),
            helper.make_node("MatMul", ["cls", "head"], ["logits"]),
        ]
        outputs = {"logits": ["batch"] if single else ["batch", weights.head.shape[1]]}
    elif task in ("masked-lm", "tagging"):
        constants["head"] = weights.head
        nodes.append(helper.make_node("MatMul", [last, "head"], ["logits"]))
        outputs = {"logits": ["batch", "length", weights.head.shape[1]]}
    elif task == "token-embedding":
        nodes.append(helper.make_node("LpNormalization", [last], ["token_embeddings"], axis=-1, p=2))
        outputs = {"token_embeddings": ["batch", "length", hidden_size]}
    elif task == "sparse-embedding":
        constants |= {"head": weights.head, "one": np.array(1, np.float32)}
        nodes += [
            helper.make_node("MatMul", [last, "head"], ["logits"]),
            helper.make_node("Relu", ["logits"], ["positive"]),
            helper.make_node("Mul", ["positive", "mask3"], ["attended_logits"]),
            helper.make_node("ReduceMax", ["attended_logits"], ["largest"], axes=[1], keepdims=0),
            helper.make_node("Add", ["largest", "one"], ["more"]),
            helper.make_node("Log", ["more"], ["sparse_embedding"]),
        ]
        outputs = {"sparse_embedding": ["batch", weights.head.shape[1]]}
    elif task == "spans":
        constants |= {"start": weights.head[:, 0], "end": weights.head[:, 1]}
        nodes += [helper.make_node("MatMul", [last, name], [f"{name}_logits"]) for name in ("start", "end")]
        outputs = {name: ["batch", "length"] for name in ("start_logits", "end_logits")}
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(name, TensorProto.INT32, ["batch", "length"]) for name in INPUT_NAMES],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
