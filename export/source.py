"""Source of an export: a checkpoint, its family, task and network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

from export.network import Network, Weights
from export.optimum_export.exporter import ExportedNetwork, TransformersModel, export_network
from export.optimum_export.family import TransformersFamily, read_transformers_family
from tasks import AnyTask
from tasks.bundle.manifest import SPACE, Precision
from tasks.bundle.model_directory import read_model_directory
from tasks.embedding import EmbeddingSettings, Pooling
from tasks.sparse_embedding import SparsePooling
from tasks.token_embedding import TokenEmbeddingSettings
from training.checkpoint.hub import checkpoint_record
from training.checkpoint.reader import CONFIG_FILE, LabelCountError, is_known_family, labels_of, load_model, read_config
from training.checkpoint.sentence_transformers import checkpoint_directory, folder_digest, read_dense
from training.checkpoint.task_card import TASK_FILE, TaskCard, space_of_vectors
from training.checkpoint.task_inference import KnownFamily, read_checkpoint_task, read_known_family
from training.model.heads import BertModel


class SettingsChanges(TypedDict, total=False):
    """Settings that override the checkpoint's; each belongs to some tasks."""

    max_seq_length: int
    """Longest sequence, in tokens, including special tokens."""
    pooling: Pooling | SparsePooling | tuple[Pooling, ...]
    """embedding: cls (the last hidden state of the first token), lasttoken (of the last), mean, max, weightedmean (by
    position) or mean_sqrt_len_tokens (sum / square root of the number of tokens); several make a longer vector.
    Default: the checkpoint's; cls if it states none. sparse-embedding: max or sum."""
    normalize: bool
    """embedding, token-embedding: scale each vector to length 1."""
    problem_type: Literal["single_label_classification", "multi_label_classification"]
    """classification: one label for a text (softmax), or any number of labels (a sigmoid for each)."""
    thresholds: tuple[float, ...]
    """multi-label classification: smallest score that selects each label, in the order of the logits."""
    activation: Literal["identity", "sigmoid", "relu", "log1p_relu"]
    """regression: identity or sigmoid, the function of the network's output; `sigmoid` for most cross-encoders.
    sparse-embedding: relu or log1p_relu, of the logits before log(1 + x)."""
    top_k: int
    """sparse-embedding: most weights of a vector if a request gives no number."""
    labels: tuple[str, ...]
    """classification, tagging: names of the labels, in the order of the logits."""
    query_length: int
    """token-embedding: longest query, in tokens."""
    document_length: int
    """token-embedding: longest document, or window of a document that is ranked, in tokens."""
    doc_stride: int
    """spans, tagging: distance between the starts of two windows, in tokens."""
    max_query_length: int
    """spans: longest question, in tokens."""
    max_answer_length: int
    """spans: longest answer, in tokens."""
    n_best_size: int
    """spans: number of candidate answers."""
    unanswerable: bool
    """spans: allow "no answer", for models trained on unanswerable questions (SQuAD v2.0)."""
    null_threshold: float
    """spans: predict "no answer" if the null score exceeds the best span's score by more than this."""


ExportableModel = BertModel | TransformersModel
"""Network in PyTorch."""


@dataclass(frozen=True)
class ExportedFamily(KnownFamily):
    """Family that `training.model` computes and `export.graph` writes."""

    directory: Path
    """Folder of the weights."""

    remark = ""
    """Note for the user."""
    calibrates = True
    """True if int8 graphs can use calibrated ranges."""

    def check(self, precision: Precision, target: str, *, mixed: bool) -> None:
        """Accept any precision and target."""

    def load_model(self, task: AnyTask, num_labels: int | None) -> BertModel:
        """Load the network of a task."""
        return load_model(self.directory, task.network_task, num_labels=num_labels)


Family = ExportedFamily | TransformersFamily
"""Family that can be exported: Bertline computes it, or Optimum exports it."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Checkpoint, and the task to export it for."""

    origin: Mapping[str, str]
    """`name`: last part of the given path, the run's name for `<run>/checkpoint`, or `org/name` of the hub. Of the hub
    also `revision`, the commit."""
    folder: Path
    """The given directory."""
    directory: Path
    """Folder of the encoder's weights; a subfolder in some sentence-transformers layouts."""
    family: Family
    task: AnyTask
    card: TaskCard | None
    """None for checkpoints that Bertline did not train."""
    remark: str = ""
    """Note on a setting that the checkpoint does not state; empty if there is none."""

    @property
    def name(self) -> str:
        """Name of the checkpoint."""
        return self.origin["name"]

    def load_model(self) -> ExportableModel:
        """Load the network with the task's head.

        Raises:
            ValueError: naming the weights that are missing or do not fit.
        """
        labels = tuple(getattr(self.task.settings, "labels", ()))
        try:
            model = self.family.load_model(self.task, len(labels) or None)
        except LabelCountError as error:
            raise ValueError(f"{error} ({self._label_source(labels)})") from error
        settings = self.task.settings
        if isinstance(settings, EmbeddingSettings | TokenEmbeddingSettings) and settings.layers:
            num_parts = len(settings.poolings) if isinstance(settings, EmbeddingSettings) else 1
            model.dense = read_dense(self.folder, settings.layers, num_parts * model.config.hidden_size)
        return model

    def space(self, declared: str = "") -> str:
        """Return the space of the vectors: the declared one, that of the teacher it was distilled from, or its own.

        Args:
            declared: space, or a model directory that has it; empty for none.

        Raises:
            ValueError: if it cannot be declared, or the directory has none.
        """
        space = space_of_vectors(self.card, self.task, folder_digest(self.folder))
        if declared and not space:
            raise ValueError(f"--space is for vectors; the task `{self.task.name}` has none")
        if SPACE.fullmatch(declared) or not declared:
            return declared or space
        if not (space := read_model_directory(Path(declared)).manifest.space):
            raise ValueError(f"--space: `{declared}` states no space; export it again, or give 16 hexadecimal digits")
        return space

    def _label_source(self, labels: tuple[str, ...]) -> str:
        """Return the file or flag that the labels come from."""
        sources = {
            f"labels of `{self.directory / TASK_FILE}`": getattr(self.card and self.card.settings, "labels", ()),
            f"id2label of `{self.directory / CONFIG_FILE}`": labels_of(read_config(self.directory, any_family=True)),
        }
        source = next((source for source, known in sources.items() if tuple(known) == labels), None)
        return f"{source}: `{', '.join(labels)[:60]}`; override them with --labels" if source else "--labels"


def read_source(checkpoint: str | Path, *, task: str | None = None, settings: SettingsChanges | None = None) -> Source:
    """Read the task and settings of a checkpoint.

    Args:
        checkpoint: directory in Hugging Face's layout, or sentence-transformers folder.
        task: task to export for; None for the checkpoint's own task.

    Raises:
        ValueError: naming the file or setting that is missing, unknown or invalid.
    """
    checkpoint = Path(checkpoint)
    directory = checkpoint_directory(checkpoint)
    values = read_config(directory, any_family=True)
    family: Family
    if is_known_family(values):
        known = read_known_family(directory, values)
        family = ExportedFamily(known.architecture, known.shape, directory)
    else:
        family = read_transformers_family(directory, values)
    found = read_checkpoint_task(checkpoint, family=family, task=task, settings=settings)
    return Source(
        origin=checkpoint_record(checkpoint),
        folder=checkpoint,
        directory=directory,
        family=family,
        task=found.task,
        card=found.card,
        remark=found.remark,
    )


def create_network(model: ExportableModel, task: AnyTask) -> Network | ExportedNetwork:
    """Return the network from which graphs are made.

    Raises:
        ValueError: if Optimum cannot export it.
    """
    if isinstance(model, TransformersModel):
        return export_network(model, task)
    return Network(model.config, Weights.from_model(model), task)
