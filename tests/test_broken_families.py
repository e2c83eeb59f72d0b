"""Checkpoints that cannot be used: export and fine-tuning name file and key in one line, for encoders of any family."""

import json
import os
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file

from export.source import read_source
from tests.families import change_config_file, change_weights, create
from tests.toy import write_classification
from training.checkpoint.reader import load_model
from training.finetuning.recipe import FinetuneRecipe
from training.finetuning.run import finetune

FAMILIES = ("bert", "roberta", "modernbert")
WEIGHTS = "model.safetensors"


def edit_config(**changes):
    return lambda directory: change_config_file(directory, **changes)


def edit_weights(change):
    """Return a function that changes the largest layer's matrix and what belongs to it."""

    def edit(directory):
        weights = load_file(directory / WEIGHTS)
        name = next(name for name in weights if "layer" in name and weights[name].dim() == 2)
        weights |= change(name, weights[name])
        save_file({key: value for key, value in weights.items() if value is not None}, directory / WEIGHTS)

    return edit


def as_gptq(name, value):
    packed = name.removesuffix("weight")
    words = torch.zeros(value.shape[1] // 8, value.shape[0], dtype=torch.int32)
    return {name: None, f"{packed}qweight": words, f"{packed}scales": torch.ones(1, value.shape[0]).half()}


def as_bitsandbytes(name, value):
    return {name: value.to(torch.int8), f"{name}_format": torch.tensor(0, dtype=torch.uint8)}


class RunsCode:
    def __reduce__(self):
        return os.system, ("exit 1",)


def plain_pickle(directory):
    (directory / WEIGHTS).unlink()
    (directory / "pytorch_model.bin").write_bytes(pickle.dumps({"more": RunsCode()}))


def with_adapter(directory):
    (directory / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))


def adapter_alone(directory):
    with_adapter(directory)
    (directory / WEIGHTS).rename(directory / "adapter_model.safetensors")
    (directory / "config.json").unlink()


def more_tokens(directory):
    def cut(weights):
        size = max(len(value) for value in weights.values())
        weights |= {name: value[:150] for name, value in weights.items() if len(value) == size}

    change_config_file(directory, vocab_size=150)
    change_weights(directory, cut)


MISTAKES = {
    "GPTQ": (edit_config(quantization_config={"quant_method": "gptq"}), r"has a quantization_config .gptq."),
    "GPTQ weights": (
        edit_weights(as_gptq),
        r"model.safetensors`: `.*qweight` is quantized; use the checkpoint with 16",
    ),
    "8-bit weights": (
        edit_weights(as_bitsandbytes),
        r"model.safetensors`: `.*weight` is quantized; use the checkpoint",
    ),
    "adapter": (with_adapter, r"adapter_config.json` is an adapter over the weights beside it; merge it"),
    "adapter alone": (adapter_alone, r"holds an adapter alone; merge it"),
    "LoRA weights": (
        edit_weights(lambda name, value: {name.replace("weight", "lora_A.default.weight"): torch.ones(2, 2)}),
        r"has `.*lora_A.*`; merge such weights",
    ),
    "plain pickle": (plain_pickle, r"cannot read weights `.*pytorch_model.bin`"),
    "tokenizer of more tokens": (more_tokens, r"has \d+ tokens, its network 150; they do not belong together"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_unusable_checkpoints(mistake, tmp_path, alone):
    """Both commands refuse the checkpoint, of alternating families, with the same line, and write nothing."""
    change, message = MISTAKES[mistake]
    kind = FAMILIES[list(MISTAKES).index(mistake) % len(FAMILIES)]
    create(kind, "embedding", tmp_path / "c")
    change(tmp_path / "c")
    train = write_classification(tmp_path / "a.jsonl", 20, 0)
    recipe = FinetuneRecipe(
        task="classification", checkpoint=tmp_path / "c", train=(train,), run_dir=tmp_path / "run", learning_rate=1e-3
    )

    with pytest.raises(ValueError, match=message) as exported:
        read_source(tmp_path / "c", task="embedding").load_model()
    with pytest.raises(ValueError, match=message) as tuned:
        finetune(recipe, alone)

    assert "\n" not in str(exported.value) + str(tuned.value)
    assert not (tmp_path / "run/checkpoint").exists()


def test_weights_in_16_bits(tmp_path):
    """bfloat16 weights are read as they are."""
    create("bert", "embedding", tmp_path)
    weights = {name: value.bfloat16() for name, value in load_file(tmp_path / WEIGHTS).items()}
    save_file(weights, tmp_path / WEIGHTS)

    ours = load_model(tmp_path, "embedding").bert.embeddings.word.weight

    assert ours.dtype == torch.float32
    assert torch.equal(ours, weights["embeddings.word_embeddings.weight"].float())
