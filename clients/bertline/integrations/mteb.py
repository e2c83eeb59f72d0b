"""Served model for the benchmark MTEB (needs mteb >= 2.20).

import mteb
from bertline import Client
from bertline.integrations.mteb import BertlineEncoder
results = mteb.evaluate(BertlineEncoder(Client("127.0.0.1:50051")), mteb.get_task("STSBenchmark"))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from mteb.models import ModelMeta
from mteb.models.abs_encoder import AbsEncoder

from bertline._models import model_of_task
from bertline.client import Client
from bertline.integrations.sentence_transformers import Encoder, SimilarityName
from bertline.results import Model

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mteb.abstasks.task_metadata import TaskMetadata
    from mteb.types import PromptType


class BertlineEncoder(AbsEncoder):
    """Model of a server for MTEB: always the same version, even if the server loads others.

    Args:
        client: client of the server, with the `space` of stored vectors if there are some; the caller closes it.
        model: name of the model; empty for the default model of the task `embedding`.
        version: model version; empty for the highest loaded version.
        prompts: texts to put before inputs, besides the model's or in place of them, by MTEB's names: a task, a type of
            task, `query`, `document`, `task-query`.
        truncate_dim: keep only the first numbers of each vector.
        truncate: truncate texts that are too long. False raises InvalidInput for them.
        similarity_fn_name: `cosine` or `dot`; None for the model's, or else `cosine`.
        metadata: fields of `mteb.ModelMeta` that the server does not know: `name` (`organization/model`), `languages`,
            `license`, `training_datasets` and the like.

    Raises:
        ModelNotFound: if there is no such model.
        ValueError: if MTEB rejects the metadata, or the similarity is unknown.
    """

    mteb_model_meta: ModelMeta

    def __init__(
        self,
        client: Client,
        *,
        model: str = "",
        version: str = "",
        prompts: Mapping[str, str] | None = None,
        truncate_dim: int | None = None,
        truncate: bool = True,
        similarity_fn_name: SimilarityName | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        found = model_of_task(client.models(), "embedding", model, version)
        self.model = Encoder(
            client,
            model=found.name,
            version=found.version,
            prompts=prompts,
            truncate_dim=truncate_dim,
            truncate=truncate,
            similarity_fn_name=similarity_fn_name,
        )
        self.model_prompts = self.model.prompts
        changes = {"prompts": dict(prompts or {}), "truncate_dim": truncate_dim}
        fields = _model_meta(found) | {
            "embed_dim": truncate_dim or found.dim,
            "similarity_fn_name": self.model.similarity_fn_name,
            "use_instructions": any(self.model.prompts.values()),
            "experiment_kwargs": {name: value for name, value in changes.items() if value} or None,
        }
        self.mteb_model_meta = ModelMeta(**fields | dict(metadata or {}))

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        prompt_type: PromptType | None = None,
        **kwargs: Any,
    ) -> np.ndarray:
        """Return one vector per text.

        Args:
            inputs: batches, each with a list of texts as `text`.
            task_metadata: metadata of the task; selects the prompt.
            hf_split: ignored.
            hf_subset: ignored.
            prompt_type: query or document; selects the prompt.
            **kwargs: arguments of `Encoder.encode`: `batch_size`, `show_progress_bar` and the like.

        Returns:
            [texts, dim] float32.
        """
        texts = [text for batch in inputs for text in batch["text"]]
        return self.model.encode(texts, prompt_name=self.get_prompt_name(task_metadata, prompt_type), **kwargs)


def _model_meta(model: Model) -> dict[str, Any]:
    """Return the fields of ModelMeta that the server knows, and None for the other required fields.

    The revision contains the digest of the graph, because MTEB caches results by name and revision.
    """
    unknown = ["release_date", "languages", "n_parameters", "memory_usage_mb", "license", "open_weights"]
    unknown += ["public_training_code", "public_training_data", "training_datasets"]
    return dict.fromkeys(unknown) | {
        "loader": None,
        "name": f"bertline/{model.name}",
        "revision": f"{model.version}-{model.digest[:12]}",
        "max_tokens": model.max_seq_length,
        "framework": ["ONNX"],
    }
