"""Read a checkpoint of a family that Bertline does not compute, but transformers does.

Weights are read by `training.checkpoint.weights`, so that pickles run no code, and code in a checkpoint is never run.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from export.optimum_export.exporter import ExportedConfig, TransformersModel, find_config_class, quiet, reason_of
from tasks import AnyTask
from tasks.bundle.manifest import Precision
from tasks.text.json_files import read_optional_json
from tasks.text.tokenizer_files import TOKENIZER_CONFIG_FILE, TOKENIZER_FILE
from training.checkpoint.reader import CONFIG_FILE, LabelCountError, unsupported_encoder
from training.checkpoint.weights import read_weights

_MAPPINGS = {
    "embedding": "MODEL_MAPPING_NAMES",
    "masked-lm": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "classification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "regression": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "tagging": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "spans": "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
    "multiple-choice": "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES",
    "pretraining": "MODEL_FOR_PRETRAINING_MAPPING_NAMES",
}
"""Task -> table in transformers with the class of each family."""
_DEFAULT_POSITIONS = 512
"""Longest sequence of a network whose config states none."""
_JIEBA = "RoFormerTokenizer"
"""Tokenizer that cuts Chinese texts into words with jieba, which its `tokenizer.json` leaves out."""
_INPUT_NAMES = ("input_ids", "token_type_ids", "attention_mask")
"""Inputs that tokenizers of transformers return by default."""


@dataclass(frozen=True)
class TransformersFamily:
    """Family of a checkpoint, by its config."""

    directory: Path
    """Folder of the weights."""
    network_config: Any
    """transformers' config."""

    calibrates = False

    @property
    def remark(self) -> str:
        """Note for the user."""
        return (
            f"Bertline has no graph for `{self.model_type}`: Optimum exports it, in fp32 or dynamic int8, "
            "which is slower"
        )

    @property
    def model_type(self) -> str:
        """Name of the family."""
        return str(self.network_config.model_type)

    @property
    def vocab_size(self) -> int:
        """Number of rows of the word embeddings."""
        return int(self.network_config.vocab_size)

    @cached_property
    def num_positions(self) -> int:
        """Longest sequence, in tokens.

        Positions that skip padding, as in RoBERTa, begin behind that of the padding token.
        """
        stated = int(getattr(self.network_config, "max_position_embeddings", 0)) or _DEFAULT_POSITIONS
        module = vars(sys.modules[_network_class(self.class_name("embedding")).__module__]).values()
        skips_padding = any(hasattr(item, "create_position_ids_from_inputs_embeds") for item in module)
        return stated - (self.network_config.pad_token_id + 1) * skips_padding

    @property
    def embedding_classes(self) -> Sequence[str]:
        """Classes that are exported as embeddings."""
        return [self.class_name(task) for task in ("embedding", "pretraining", "masked-lm")]

    def class_name(self, task: str) -> str:
        """Return the family's class for a task; empty if there is none."""
        from transformers.models.auto import modeling_auto

        names = getattr(modeling_auto, _MAPPINGS[task]) if task in _MAPPINGS else {}
        name = names.get(self.model_type, "")
        return str(name if isinstance(name, str) else name[0])

    def check(self, precision: Precision, target: str, *, mixed: bool) -> None:
        """Raise if the family cannot be exported in this way.

        Args:
            target: flag that chooses machine and engine, such as `--target cpu`.

        Raises:
            ValueError: naming the flag.
        """
        flags = {target: target != "--target cpu", f"--precision {precision}": precision == "fp16"}
        for flag, is_refused in (flags | {"--mixed": mixed}).items():
            if is_refused:
                raise ValueError(
                    f"{flag} is not for a `{self.model_type}`: Optimum exports it, in fp32 or dynamic int8 for CPUs"
                )

    def load_model(self, task: AnyTask, num_labels: int | None) -> TransformersModel:
        """Load the network of a task.

        Raises:
            ValueError: naming the weights that are missing, unknown or of another shape.
        """
        if not (name := self.class_name(task.network_task)):
            raise ValueError(f"transformers has no network of a `{self.model_type}` for `{task.name}`")
        find_config_class(self.model_type)  # raises before the weights are read
        _check_attention(self.network_config, task.settings.max_seq_length)
        if num_labels or task.name == "regression":
            self.network_config.num_labels = num_labels or 1
        with quiet():
            network, missing = self._load_network(name, task)
        names = [item.name for item in fields(ExportedConfig)]
        values: dict[str, Any] = {name: getattr(self.network_config, name, 0) for name in names}
        reads_token_types = self._reads_token_types(network)
        model = TransformersModel(
            network, ExportedConfig(**values), task.network_task, reads_token_types=reads_token_types
        )
        self._check_missing(model.eval(), missing, task)
        return model

    def _load_network(self, class_name: str, task: AnyTask) -> tuple[nn.Module, list[str]]:
        """Return a network with the checkpoint's weights, and the names of those that it lacks."""
        weights = read_weights(self.directory)
        network, found = _network_class(class_name).from_pretrained(
            None,
            config=self.network_config,
            state_dict=dict(weights),
            attn_implementation="eager",
            ignore_mismatched_sizes=True,  # reported below
            output_loading_info=True,
        )
        self._check_shapes(network, weights, found["mismatched_keys"], task)
        self._check_unexpected(network, found["unexpected_keys"])
        return network, list(found["missing_keys"])

    def _check_shapes(
        self, network: nn.Module, weights: Mapping[str, torch.Tensor], mismatched: Sequence[str], task: AnyTask
    ) -> None:
        """Raise for a weight of another shape than the network's."""
        parameters = dict(network.state_dict())
        for name in mismatched:
            wrong = next(value for key, value in weights.items() if f".{key}".endswith(f".{name}"))
            shapes = f"{list(wrong.shape)} where its config makes it {list(parameters[name].shape)}"
            is_head = not name.startswith(f"{network.base_model_prefix}.")
            error = LabelCountError if is_head and hasattr(task.settings, "labels") else ValueError
            raise error(f"checkpoint `{self.directory}` does not fit `{task.name}`: `{name}` is {shapes}")

    def _check_unexpected(self, network: nn.Module, unexpected: Sequence[str]) -> None:
        """Raise for a weight of the encoder that the network does not have; those of other heads are not read."""
        prefix = str(network.base_model_prefix)
        encoder = getattr(network, prefix, network)
        parts = {f"{start}{part}" for start in ("", f"{prefix}.") for part, _ in encoder.named_children()}
        for name in unexpected:
            if "pooler" not in name and name.startswith(tuple(f"{part}." for part in parts)):
                raise ValueError(
                    f"checkpoint `{self.directory}` has `{name}`, which is not part of a `{self.model_type}`"
                )

    @torch.inference_mode()
    def _check_missing(self, model: TransformersModel, missing: Sequence[str], task: AnyTask) -> None:
        """Raise if an output depends on a weight that the checkpoint lacks, or if the longest sequence fails."""
        length = task.settings.max_seq_length
        ids = torch.randint(0, self.vocab_size, (1, length), generator=torch.Generator().manual_seed(0))
        inputs = ids, torch.ones_like(ids), torch.zeros_like(ids)
        try:
            model(*inputs)
        except Exception as error:  # of many kinds, such as an index beyond a table
            raise ValueError(
                f"a `{self.model_type}` fails with a sequence of {length} tokens ({reason_of(error)}); give a smaller "
                "--max-seq-length"
            ) from error
        state = model.network.state_dict()
        for name in missing:
            if name in state and state[name].is_floating_point():
                state[name].fill_(torch.nan)
                if not all(output.isfinite().all() for output in model(*(item[:, :8] for item in inputs)).values()):
                    raise ValueError(
                        f"checkpoint `{self.directory}` cannot do `{task.name}`: it lacks `{name}`; fine-tune it for "
                        "that first"
                    )
                state[name].zero_()

    def _reads_token_types(self, network: nn.Module) -> bool:
        """Return whether transformers would pass the token types of the family's tokenizer to the network."""
        has_types = getattr(self.network_config, "type_vocab_size", 2) > 1
        takes_types = "token_type_ids" in inspect.signature(network.forward).parameters
        return has_types and takes_types and "token_type_ids" in self._tokenizer_outputs()

    def _tokenizer_outputs(self) -> Sequence[str]:
        from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES, tokenizer_class_from_name

        stated = _tokenizer_config(self.directory)
        if stated.get("model_input_names"):
            return list(stated["model_input_names"])
        names = [stated.get("tokenizer_class"), *reversed(TOKENIZER_MAPPING_NAMES.get(self.model_type, ()))]
        with quiet():
            classes = [tokenizer_class_from_name(name) for name in names if name]
        return next((item.model_input_names for item in classes if item), _INPUT_NAMES)


def read_transformers_family(directory: Path, values: Mapping[str, Any]) -> TransformersFamily:
    """Read the family of a checkpoint.

    Raises:
        ValueError: if it is no encoder that transformers knows, or runs custom code.
    """
    path = directory / CONFIG_FILE
    if reason := _refusal(values):
        raise unsupported_encoder(values, path, reason)
    _check_tokenizer(directory, values["model_type"])
    with quiet():
        from transformers import CONFIG_MAPPING

        try:
            config = CONFIG_MAPPING[values["model_type"]].from_dict({**values, "return_dict": True})
        except Exception as error:  # configs raise errors of many kinds
            raise ValueError(f"broken `{path}`: {reason_of(error)}") from error
        family = TransformersFamily(directory, config)
        network_class = _network_class(family.class_name("embedding"))
    if config.is_encoder_decoder or network_class.main_input_name != "input_ids":
        kind = "an encoder with a decoder" if config.is_encoder_decoder else "not an encoder of text"
        raise unsupported_encoder(values, path, f"it is {kind}")
    return family


def _check_tokenizer(directory: Path, model_type: str) -> None:
    """Raise if `tokenizer.json` is missing, or does not describe all of the tokenizer."""
    if not (directory / TOKENIZER_FILE).is_file():
        raise ValueError(
            f"`{directory}` has no {TOKENIZER_FILE}, which a `{model_type}` needs; save its tokenizer with "
            "transformers: AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    if str(_tokenizer_config(directory).get("tokenizer_class")).startswith(_JIEBA):
        raise ValueError(
            f"unsupported tokenizer_class in `{directory / TOKENIZER_CONFIG_FILE}`: `{_JIEBA}` cuts words with jieba, "
            f"which {TOKENIZER_FILE} does not describe"
        )


def _refusal(values: Mapping[str, Any]) -> str:
    """Return why a checkpoint is no encoder that transformers knows; empty if it is one."""
    with quiet():
        import transformers
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
        from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    name = values.get("model_type")
    if values.get("auto_map"):
        return "its network is separate code (auto_map), which is not run"
    if not isinstance(name, str) or name not in CONFIG_MAPPING_NAMES:
        return f"transformers {transformers.__version__} does not know it"
    if name not in MODEL_FOR_MASKED_LM_MAPPING_NAMES:  # causal attention, vision, speech
        return (
            "Optimum exports others, if transformers has a masked LM of the family, which shows that it is an encoder"
        )
    return ""


def _check_attention(config: Any, max_seq_length: int) -> None:
    """Raise if the attention is sparse for the longest sequences; it is full below (BigBird)."""
    if getattr(config, "attention_type", "") != "block_sparse":
        return
    limit = (5 + 2 * config.num_random_blocks) * config.block_size
    if max_seq_length > limit:
        raise ValueError(
            f"attention_type `block_sparse` is not supported above {limit} tokens; give --max-seq-length {limit}"
        )
    config.attention_type = "original_full"


def _network_class(name: str) -> Any:
    import transformers

    with quiet():
        return getattr(transformers, name)


def _tokenizer_config(directory: Path) -> dict[str, Any]:
    return read_optional_json(directory / TOKENIZER_CONFIG_FILE)
