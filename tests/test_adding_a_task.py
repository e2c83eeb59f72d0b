"""A toy task and a toy operation, added from outside, run from training to the client; the lists in CONTRIBUTING.md.

The toys are defined here and entered into the registries that CONTRIBUTING.md lists; no other code knows them. A new
RPC needs a message in encoder.proto and generated stubs, which a test cannot add: the toy operation takes over the RPC
`Regress`, whose messages hold texts and numbers.
"""

import asyncio
import json
import pkgutil
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch.nn.functional as F
from torch import Tensor, nn

from bertline import AsyncClient, Client
from bertline._async_sender import coroutine
from bertline._blocking_sender import blocking
from bertline._convert import Call, Split
from bertline._inputs import read_texts
from bertline.operations.base import request_of
from bertline.operations.regress import read_values
from bertline.v1 import encoder_pb2 as pb
from export import ExportConfig, export_checkpoint
from export.source import read_source
from serving.endpoints import ENDPOINTS, TextEndpoint
from serving.open_inference.task_tensors import TaskTensors
from serving.open_inference.tensors import TensorSpec
from tasks import Task
from tasks._encode import encode_texts
from tasks.base import TaskSettings
from tasks.batching import predict
from tasks.metrics import regression_scores
from tests.serving.conftest import serve
from tests.serving.open_inference.messages import infer
from training.checkpoint.evaluation import load_for_evaluation, torch_run
from training.checkpoint.task_card import read_task_card
from training.data.examples import Examples
from training.data.table_examples import read_regression
from training.finetuning.recipe import FinetuneRecipe
from training.finetuning.run import finetune
from training.model.heads import BertModel
from training.model.vectors import EMBEDDERS
from training.objectives.base import LabelledFeatures, TaskObjective

ROOT = Path(__file__).parents[1]


# A task: how loud a text is, from the pooled output of a network with a head that is fine-tuned


@dataclass(frozen=True)
class LoudnessExample:
    text: str
    loudness: float = 0.0


@dataclass(frozen=True)
class LoudnessSettings(TaskSettings):
    max_seq_length: int = 16


class Loudness(Task):
    name = "loudness"
    settings_type = LoudnessSettings
    output_names = ("loudness",)
    token_outputs = False

    def encode(self, examples, *, truncate=True):
        texts, length = [example.text for example in examples], self.settings.max_seq_length
        return [[item] for item in encode_texts(self.tokenizer, texts, length, truncate=truncate)]

    def decode(self, example, features, outputs):
        return float(outputs[0]["loudness"])

    def score(self, examples, predictions):
        return regression_scores([example.loudness for example in examples], predictions)


class LoudnessNetwork(BertModel):
    def __init__(self, config):
        super().__init__(config)
        self.classifier = nn.Linear(config.hidden_size, 1)

    def forward(self, input_ids, attention_mask, token_type_ids):
        pooled = self.bert.pool(self.bert(input_ids, attention_mask, token_type_ids), attention_mask)
        return {"loudness": self.classifier(pooled).squeeze(-1)}


class LoudnessObjective(TaskObjective):
    baselines: ClassVar = {
        "silence": lambda train, dev: regression_scores([item.loudness for item in dev], [0.0] * len(dev))
    }

    def read(self, path, columns):
        located = read_regression(path, columns).located()
        return Examples((place, LoudnessExample(item.text, item.label)) for place, item in located)

    def settings(self, options, examples):
        return LoudnessSettings(max_seq_length=options.max_seq_length)

    def label(self, task, example, features):
        return [LabelledFeatures(tuple(features), (example.loudness,))]

    def loss(self, outputs: dict[str, Tensor], batch) -> Tensor:
        return F.mse_loss(outputs["loudness"], batch.targets["labels"][:, 0], reduction="sum")


def write_loudness(writer, x):
    loudness = writer.graph.add("Squeeze", writer.float_layer("classifier", writer.pooled(x)), writer.graph.ints(1))
    return [writer.output("loudness", loudness, "batch")]


# A task on an existing network: the largest number of the first hidden state


@dataclass(frozen=True)
class PeakSettings(LoudnessSettings):
    pass


class Peak(Loudness):
    name = "peak"
    network = "embedding"
    settings_type = PeakSettings
    output_names = ("peak",)

    def decode(self, example, features, outputs):
        return float(outputs[0]["peak"])


class PeakNetwork(nn.Module):
    def __init__(self, model, settings):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, token_type_ids):
        return {"peak": self.model.bert(input_ids, attention_mask, token_type_ids)[:, 0].amax(-1)}


def write_peak(writer, x):
    peak = writer.graph.add("ReduceMax", writer.pool(x, "cls"), writer.graph.ints(1), keepdims=0)
    return [writer.output("peak", peak, "batch")]


# Their operation: request and reply in the server, tensors of the other protocol, method of the client


class Measure(TextEndpoint):
    name = "Regress"
    task = Loudness.name
    any_task = True
    reply_type = pb.RegressReply

    def examples(self, request, task):
        return [LoudnessExample(item.text) for item in request.inputs]

    def result(self, prediction, example, task, request):
        return prediction

    def start_reply(self, results, task):
        return pb.RegressReply(values=results)

    def serialized_results(self, results):
        return ()


class LoudnessTensors(TaskTensors):
    task = Loudness.name

    def outputs(self, model):
        return [TensorSpec(model.task.name, "FP32", (-1,))]

    def example(self, row, task):
        return LoudnessExample(row["text"])

    def result(self, prediction, example, options, task):
        return [prediction]


class PeakTensors(LoudnessTensors):
    task = Peak.name


def measure(texts, model) -> "Call[list[float]]":
    """Return the call of the clients' method."""
    request = request_of(pb.RegressRequest, model, "", None)
    inputs = [pb.TextInput(text=text) for text in read_texts(texts)]
    return Call("Regress", Split(inputs, "inputs", request), read_values)


class ToyClient(Client):
    measure = blocking(measure)


class AsyncToyClient(AsyncClient):
    measure = coroutine(measure)


ENTRIES = {
    Loudness: {
        "tasks.registry.TASKS": Loudness,
        "training.model.heads.MODELS": LoudnessNetwork,
        "training.objectives.registry.OBJECTIVES": LoudnessObjective(),
        "export.heads.HEADS": write_loudness,
        "serving.open_inference.task_tensors.TASK_TENSORS": LoudnessTensors(),
    },
    Peak: {
        "tasks.registry.TASKS": Peak,
        "training.model.vectors.EMBEDDERS": PeakNetwork,
        "export.heads.HEADS": write_peak,
        "serving.open_inference.task_tensors.TASK_TENSORS": PeakTensors(),
    },
}
"""Entries of each task, by the path of their table."""
OPERATION = {
    "serving.endpoints.ENDPOINTS": Measure(),
    "bertline.operations.base.request_of": measure,
    "bertline.client.Client": ToyClient,
    "bertline.async_client.AsyncClient": AsyncToyClient,
}
"""Parts of the operation, by the path of what each extends."""


@pytest.fixture(scope="module", autouse=True)
def _registered():
    """Enter the toys into the tables."""
    with pytest.MonkeyPatch.context() as patch:
        for task, entries in ENTRIES.items():
            for path, value in entries.items():
                table = pkgutil.resolve_name(path)
                patch.setitem(table, task.settings_type if table is EMBEDDERS else task.name, value)
        ENDPOINTS.append(OPERATION["serving.endpoints.ENDPOINTS"])
        yield
        ENDPOINTS.pop()


TEXTS = ["the big red house", "a dog sleeps", "the cat sees the old tree", "big big big"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "loudness.jsonl"
    rows = [{"text": text, "label": 0.5 * text.count("big")} for text in TEXTS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def trained(checkpoint, data, tmp_path_factory, alone):
    """Return a checkpoint that was fine-tuned for some steps."""
    recipe = FinetuneRecipe(
        task="loudness",
        checkpoint=checkpoint,
        train=(data,),
        dev=(data,),
        run_dir=tmp_path_factory.mktemp("runs") / "loudness",
        num_epochs=40,
        learning_rate=1e-2,
        global_batch_size=2,
        micro_batch_size=2,
        dtype="fp32",
        dropout=0.0,
    )
    return finetune(recipe, alone)


@pytest.fixture(scope="module")
def exported(checkpoint, trained, tmp_path_factory):
    """Return a directory with a model of each toy task."""
    models, config = tmp_path_factory.mktemp("models"), ExportConfig(tune=False)
    export_checkpoint(trained, models / "loudness" / "1", config)
    export_checkpoint(checkpoint, models / "peak" / "1", config, task="peak", settings={"max_seq_length": 16})
    return models


@pytest.fixture(scope="module")
def server(exported):
    with serve(exported) as running:
        yield running


def test_the_toy_task_scores_the_same_at_each_stage(trained, exported, server):
    """A task from outside is trained, evaluated, exported and served, with the same scores."""
    task, run = load_for_evaluation(trained)
    examples = [LoudnessExample(text, 0.5 * text.count("big")) for text in TEXTS]
    evaluated = predict(task, examples, run)
    card, manifest = read_task_card(trained), json.loads((exported / "loudness" / "1" / "manifest.json").read_text())

    with ToyClient(server.target) as client:
        served = client.measure(TEXTS, "loudness")

    assert max(evaluated) - min(evaluated) > 0.1
    assert task.score(examples, evaluated) == pytest.approx(card.scores["dev"])
    assert manifest["scores"]["quality"]["fp32"]["scores"] == pytest.approx(card.scores["dev"], abs=1e-5)
    np.testing.assert_allclose(served, evaluated, atol=1e-5)
    np.testing.assert_allclose(infer(server, "loudness", text=TEXTS)["loudness"], served, rtol=1e-6)


def test_the_toy_operation_reads_an_existing_network(checkpoint, server):
    """An operation on the network of another task is exported and served, with the numbers of PyTorch."""
    source = read_source(checkpoint, task="peak", settings={"max_seq_length": 16})
    evaluated = predict(source.task, list(map(LoudnessExample, TEXTS)), torch_run(source.load_model(), source.task))

    async def measure():
        async with AsyncToyClient(server.target) as client:
            return await client.measure(TEXTS, "peak")

    served = asyncio.run(measure())

    np.testing.assert_allclose(served, evaluated, atol=1e-5)
    np.testing.assert_allclose(infer(server, "peak", text=TEXTS)["peak"], served, rtol=1e-6)


def listed(section):
    """Return the paths in the numbered list of a section of CONTRIBUTING.md."""
    text = re.search(rf"## {section}\n(.*?)\n## ", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)[1]
    return re.findall(r"^\d+\. `([^`]+)`", text, re.MULTILINE)


def files_of(entries, own):
    """Return the files that entries extend; next to a module `base`, that is a file of the entry."""
    modules = {path.rpartition(".")[0] for path in entries}
    for value in entries.values():
        kind = value if isinstance(value, type) else type(value)
        base = next(item.__module__ for item in kind.__mro__ if item.__module__ != __name__)
        modules |= {base} if base.endswith(".base") else set()
    paths = {Path(pkgutil.resolve_name(module).__file__).relative_to(ROOT) for module in modules}
    return {str(path.with_name(f"<{own}>.py") if path.name == "base.py" else path) for path in paths}


@pytest.mark.parametrize(
    ("section", "task", "most_files"), [("Adding a task", Loudness, 25), ("Adding an operation", Peak, 20)]
)
def test_the_lists_name_the_files_of_the_toys(section, task, most_files):
    """The numbered list has the files that the toys extend, tests and docs; each exists, and they are few."""
    found, messages = listed(section), {f"protos/{pb.DESCRIPTOR.name}"}
    code = files_of(ENTRIES[task], "task") | files_of(OPERATION, "operation") | messages

    assert {path for path in found if not path.startswith(("tests/", "docs/", "CHANGELOG"))} == code
    assert len(found) == len({*found}) <= most_files
    assert all(any(ROOT.glob(re.sub("<[a-z]+>", "*", path))) for path in found)
