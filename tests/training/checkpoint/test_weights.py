"""Tests of weights that are made to fill the memory."""

import json
import pickle
import zipfile

import pytest
import torch

from training.checkpoint import pickled_weights
from training.checkpoint.weights import read_weights


def rewrite(path, compression=zipfile.ZIP_STORED, pickled=None):
    """Write a file of PyTorch's again, with another compression or pickle."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in entries.items():
            archive.writestr(name, pickled if pickled and name.endswith("data.pkl") else data)


def compressed(path):
    torch.save({"a": torch.zeros(2**20)}, path)
    rewrite(path, zipfile.ZIP_DEFLATED)


def overlapping(path):
    torch.save({"a": torch.zeros(2**16)}, path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.filelist += 9 * [entry for entry in archive.filelist if entry.filename.endswith("/data/0")]
        archive._didModify = True


def many_names(path):
    numbers = torch.zeros(2**16, dtype=torch.float16)
    torch.save({f"a{index}": numbers for index in range(100)}, path)


def expanded(path, **options):
    torch.save({"a": torch.zeros(1, dtype=torch.float16).expand(2**20, 2**10)}, path, **options)


def expanded_and_old(path):
    expanded(path, _use_new_zipfile_serialization=False)


def claiming(path):
    """Write a tensor with more numbers than its array has."""
    torch.save({"a": torch.zeros(4)}, path)
    with zipfile.ZipFile(path) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("data.pkl"))
        rewrite(path, pickled=archive.read(name).replace(b"K\x04", b"J\x00\x00\x00\x40"))


def calling(name, argument):
    """Return a writer of a file that calls a function of PyTorch's list."""

    class Call:
        def __reduce__(self):
            return (eval(name, {"torch": torch}), (argument,))

    return lambda path: torch.save({"a": torch.zeros(1), "b": Call()}, path)


def copying(path):
    """Write a few thousand copies of one list."""
    torch.save({"a": torch.zeros(1)}, path)
    pairs = b"]q\x01(" + b"".join(b"M" + number.to_bytes(2, "little") + b"N\x86" for number in range(9000)) + b"e"
    rewrite(
        path, pickled=b"\x80\x02" + pairs + b"ccollections\nOrderedDict\nq\x02(" + 9000 * b"h\x02h\x01\x85R" + b"t."
    )


def setting(path):
    """Write a few thousand dictionaries with the same attributes."""
    torch.save({"a": torch.zeros(1)}, path)
    names = b"}q\x01(" + b"".join(b"U\x04%04dN" % number for number in range(9000)) + b"u"
    rewrite(path, pickled=b"\x80\x02" + names + b"ccollections\nOrderedDict\nq\x02(" + 9000 * b"h\x02)Rh\x01b" + b"t.")


PLAIN = "it holds more than plain tensors"
BOMBS = {
    "compressed": (compressed, "its archive is compressed"),
    "overlapping": (overlapping, "its archive would unpack to more bytes than the file has"),
    "many names": (many_names, "13,107,200 bytes of tensors in "),
    "expanded": (expanded, "2,147,483,648 bytes of tensors in "),
    "expanded, before PyTorch 1.6": (expanded_and_old, "2,147,483,648 bytes of tensors in "),
    "claims": (claiming, "record size (16 bytes) does not match"),
    "bytearray": (calling("bytearray", 2**33), PLAIN),
    "tensor": (calling("torch.Tensor", 2**33), PLAIN),
    "copies": (copying, PLAIN),
    "attributes": (setting, PLAIN),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs(tmp_path, name, monkeypatch):
    """A small file that would fill the memory is refused in one line; most are before PyTorch reads them."""
    write, message = BOMBS[name]
    write(tmp_path / "pytorch_model.bin")
    if "names" not in name and "expanded" not in name and name != "claims":
        monkeypatch.setattr(torch, "load", lambda *arguments, **options: pytest.fail("read"))

    with pytest.raises(ValueError, match=r"^cannot read weights `.*pytorch_model.bin`: [^\n]*$") as error:
        read_weights(tmp_path)

    assert message in str(error.value)


@pytest.mark.parametrize("is_archive", [True, False])
def test_long_pickles(tmp_path, monkeypatch, is_archive):
    """The part without arrays has a limit."""
    monkeypatch.setattr(pickled_weights, "MAX_PICKLE_BYTES", 1000)
    values = {f"a{index}": torch.zeros(1) for index in range(100)}
    torch.save(values, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=is_archive)

    with pytest.raises(ValueError, match="cannot read weights"):
        read_weights(tmp_path)


@pytest.mark.parametrize("is_archive", [True, False])
def test_usual_files(tmp_path, is_archive):
    """State dictionaries of modules, parameters and tied weights are read, in both formats of PyTorch."""
    module = torch.nn.Sequential(torch.nn.Embedding(8, 4), torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
    module[1].weight = module[0].weight
    values = module.state_dict()
    values["parameter"] = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    torch.save(values, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=is_archive)

    found = read_weights(tmp_path)

    torch.testing.assert_close(
        found, {name: value.float() for name, value in values.items() if value.is_floating_point()}
    )


@pytest.mark.parametrize(
    "header",
    [b"\xff" * 8, (2**40).to_bytes(8, "little"), b'{"a":{"dtype":"F32","shape":[1048576],"data_offsets":[0,4194304]}}'],
)
def test_safetensors(tmp_path, header):
    """A header that promises more than the file has is refused."""
    content = header if len(header) == 8 else len(header).to_bytes(8, "little") + header + bytes(8)
    (tmp_path / "model.safetensors").write_bytes(content)

    with pytest.raises(ValueError, match=r"^cannot read weights `.*model.safetensors`: [^\n]*$"):
        read_weights(tmp_path)


def test_an_index_that_leaves_its_folder(tmp_path):
    """An index names only files next to it."""
    (tmp_path / "secret").write_bytes(pickle.dumps(1))
    (tmp_path / "model").mkdir()
    index = {"weight_map": {"a": "../secret"}}
    (tmp_path / "model/pytorch_model.bin.index.json").write_text(json.dumps(index))

    with pytest.raises(ValueError, match=r"names `../secret`, which is no file beside it"):
        read_weights(tmp_path / "model")
