"""Model directories are read as they were written, and refused with one line if anything is wrong."""

import json
from dataclasses import MISSING, fields, replace

import pytest

from tasks import create_task, settings_from_dict
from tasks.bundle.files import sha256
from tasks.bundle.manifest import SPACE, Execution, Manifest, space_of
from tasks.bundle.model_directory import (
    ModelDirectory,
    list_model,
    misplaced_beside,
    model_folders,
    no_models_error,
    parse_model_path,
    read_model_directory,
    version_paths,
)
from tasks.embedding import EmbeddingSettings
from tasks.regression import RegressionSettings
from tasks.text.tokenizer import Tokenizer
from tasks.text.tokenizer_files import build_tokenizer
from tasks.token_embedding import TokenEmbeddingSettings

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat"]
SETTINGS = {
    "embedding": {"pooling": "mean", "normalize": True},
    "classification": {"labels": ["schön", "nicht 👍"]},
    "spans": {"unanswerable": True, "null_threshold": -1.5, "doc_stride": 64},
    "masked-lm": {"max_seq_length": 64},
}


def make_manifest(task, files):
    return Manifest(
        name="demo",
        version="3",
        task=task,
        settings=settings_from_dict(task, SETTINGS[task]),
        precision="int8",
        opset=17,
        hidden_size=32,
        vocab_size=100,
        inputs=("input_ids", "attention_mask"),
        outputs=("logits",),
        files=files,
        execution=Execution(max_batch_tokens=256, disabled_optimizers=("SkipLayerNormFusion",)),
        provenance={"checkpoint": "abc", "versions": {"onnx": "1.2"}},
        scores={"fp32": {"f1": 0.5}},
    )


@pytest.fixture(params=["spans"])
def directory(request, tmp_path, tokenizer):
    """Model directory whose graph is not a real one."""
    path = tmp_path / "demo" / "3"
    path.mkdir(parents=True)
    (path / "model.onnx").write_bytes(b"graph")
    tokenizer.backend.save(str(path / "tokenizer.json"))
    files = {name: sha256(path / name) for name in ("model.onnx", "tokenizer.json")}
    (path / "manifest.json").write_text(make_manifest(request.param, files).to_json(), encoding="utf-8")
    return path


def change(directory, **changes):
    """Set keys of manifest.json, or remove them with REMOVED."""
    path = directory / "manifest.json"
    values = json.loads(path.read_text(encoding="utf-8")) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not REMOVED}))


REMOVED = object()


def error_of(directory):
    with pytest.raises(ValueError, match="`") as caught:
        read_model_directory(directory)
    assert type(caught.value) is ValueError
    assert "\n" not in str(caught.value)
    assert str(directory) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("directory", list(SETTINGS), indirect=True)
def test_round_trip(directory, tokenizer):
    """Reading returns the manifest that was written, and `load_task` makes its task."""
    model = read_model_directory(str(directory))
    task = model.load_task()

    manifest = make_manifest(task.name, model.manifest.files)
    assert model == ModelDirectory(path=directory, manifest=manifest, weight_files={"model.onnx": ()})
    assert Manifest.from_json(model.manifest.to_json()) == model.manifest
    assert model.model_path == directory / "model.onnx"
    assert task.settings == settings_from_dict(task.name, SETTINGS[task.name])
    assert task.tokenizer.tokenize(["hello, you"])[0].ids.tolist() == tokenizer.tokenize(["hello, you"])[0].ids.tolist()


def nested(depth):
    """Return an empty object inside `depth` other objects."""
    return {"key": nested(depth - 1)} if depth else {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"opsets": 17}, "unknown key `opsets`"),
        ({"task": "sentiment"}, "unknown task: `sentiment`"),
        ({"opset": True}, "`opset` must be a whole number: `true`"),
        ({"precision": "fp8"}, "`precision` must be 'fp32', 'fp16' or 'int8': `\"fp8\"`"),
        ({"fallback": {"threads": 2}}, "unknown key `fallback.threads`"),
        ({"fallback": {"floats": "bf16"}}, "fallback.floats must be fp32, or bf16 in another engine than ONNX Runtime"),
        ({"execution": {"provider_options": {"a": 1}}}, "`execution.provider_options.a` must be a string: `1`"),
        ({"hidden_size": 0}, "hidden_size must be at least 1: `0`"),
        ({"execution": {"num_threads": 2000}}, "execution.num_threads must be at most 1024: `2000`"),
        ({"scores": {"dev": {"pearson": float("nan")}}}, "expected value at line 1 column"),
        ({"outputs": ["\ud800"]}, "hex escape at line 1 column"),
        ({"scores": {"dev": nested(500)}}, "recursion limit exceeded at line 1 column"),
    ],
)
def test_wrong_values_are_named(directory, changes, message):
    """Values of a wrong type, and impossible ones, are refused in one line of UTF-8 that names their key."""
    change(directory, **changes)

    assert f"broken manifest `{directory / 'manifest.json'}`" in error_of(directory)
    assert message in error_of(directory)
    assert error_of(directory).encode()


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json"])
def test_files_are_checked(directory, name):
    """A file is named in the error if it was changed, is missing, or is not in the manifest."""
    path = directory / name
    path.write_bytes(path.read_bytes() + b"x")

    assert f"wrong digest of `{path}`" in error_of(directory)

    path.unlink()
    assert f"missing file: `{path}`" in error_of(directory)

    files = dict(read_files(directory))
    del files[name]
    change(directory, files=files)
    assert f"`files` lacks `{name}`" in error_of(directory)


def read_files(directory):
    return json.loads((directory / "manifest.json").read_text(encoding="utf-8"))["files"]


@pytest.mark.parametrize("name", ["../2/model.onnx", "/etc/hostname", "sub/model.onnx", "./model.onnx", "..", ".", ""])
def test_files_outside_are_not_read(directory, name):
    """Names in `files` that lead out of the directory are refused."""
    (directory / "sub").mkdir()
    (directory / "sub" / "model.onnx").write_bytes(b"graph")
    change(directory, files=read_files(directory) | {name: sha256(directory / "model.onnx")})

    message = error_of(directory)

    assert "is not a plain file name" in message or "missing file" in message


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe", b'{"format": 2}', b'{"format": "1"}', b"{}", b"[" * 100_000],
    ids=range(10),
)
def test_broken_manifests(directory, content):
    """A manifest is refused if it is not JSON, not an object, not UTF-8, or of another format."""
    (directory / "manifest.json").write_bytes(content)

    assert f"broken manifest `{directory / 'manifest.json'}`" in error_of(directory)


def test_a_directory_without_manifest(directory):
    """A path without a manifest file is refused."""
    (directory / "manifest.json").unlink()

    assert "has no manifest.json" in error_of(directory)
    assert "has no manifest.json" in error_of(directory / "missing")
    assert "has no manifest.json" in error_of(directory / "model.onnx")
    (directory / "manifest.json").mkdir()
    assert "has no manifest.json" in error_of(directory)


REQUIRED = [item.name for item in fields(Manifest) if item.default is item.default_factory is MISSING]


@pytest.mark.parametrize("name", REQUIRED)
def test_missing_keys(directory, name):
    """A key without a default must be there."""
    change(directory, **{name: REMOVED})

    assert f"missing key `{name}`" in error_of(directory)


def test_settings_of_engines_are_read_as_written(directory):
    """Provider options, and the settings of the fallback graph for ONNX Runtime, are read as they were written."""
    execution = Execution(provider="OpenVINO", provider_options={"X": "0"}, floats="bf16")
    fallback = Execution(max_batch_tokens=256)
    manifest = replace(read_model_directory(directory).manifest, execution=execution, fallback=fallback)
    again = Manifest.from_json(manifest.to_json())

    assert again == manifest
    assert again.in_onnx_runtime == fallback
    assert replace(again, fallback=None).in_onnx_runtime == Execution()


def test_infinite_scores_are_refused(directory):
    """A number that is too large for a float is infinity, which could not be written again."""
    path = directory / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"scores": {"f1": 12345}}).replace("12345", "1e999"))

    assert "not JSON compliant" in error_of(directory)


def test_values_that_json_lacks_are_not_written():
    """Values that would make a manifest unreadable are refused before it is written."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        replace(make_manifest("spans", {}), scores={"f1": float("nan")}).to_json()


def test_broken_tokenizer_with_right_digest(directory):
    """A broken tokenizer with a correct digest is refused by `load_task`."""
    (directory / "tokenizer.json").write_text("{}")
    change(directory, files=read_files(directory) | {"tokenizer.json": sha256(directory / "tokenizer.json")})

    with pytest.raises(ValueError, match="not a tokenizer file"):
        read_model_directory(directory).load_task()


def make_tree(root, paths):
    for path in paths:
        (root / path).mkdir(parents=True)


def test_versions_of_models(tmp_path):
    """Versions are sorted as numbers, and other files and folders are ignored."""
    make_tree(tmp_path, ["b/10", "b/9", "b/1", "a.x-1/2", "b/latest", "b/01", "b/.11.tmp", ".hidden/1", "empty", "c/x"])
    (tmp_path / "file").write_text("")
    (tmp_path / "b" / "12").write_text("")

    versions = {folder.name: [path.name for path in version_paths(folder)] for folder in model_folders(tmp_path)}

    assert versions == {"a.x-1": ["2"], "b": ["1", "9", "10"], "c": [], "empty": [], "file": []}


def test_no_models(tmp_path):
    """A missing directory, a file, and a directory without models are errors with the remedy."""
    (tmp_path / "file").write_text("")
    for path, what in {"missing": "export a model into it first", "file": "it is a file"}.items():
        with pytest.raises(ValueError, match=f"no directory of models: `.*{path}`; {what}"):
            model_folders(tmp_path / path)

    make_tree(tmp_path, ["models/demo/latest"])
    assert f"no models in `{tmp_path / 'models'}`; expected `" in str(no_models_error(tmp_path / "models"))


MISPLACED = {
    "demo/v2": "must end in a version",
    "my model/1": "invalid model name",
    "demo": "move it to a version, such as `{}/demo/1`",
    "group/demo/1": "move it to `{}/demo/1`",
    "": "move it to `{}/<name>/<version>`",
}


@pytest.mark.parametrize("file", ["manifest.json", "model.onnx"])
@pytest.mark.parametrize("path", MISPLACED)
def test_models_in_wrong_places(tmp_path, path, file):
    """A model that no version of a name holds is named, as the error if it is the only one."""
    directory = tmp_path / path
    directory.mkdir(parents=True, exist_ok=True)
    (directory / file).write_text('{"format": 1, "task": "spans", "files": {}}')

    message = str(no_models_error(tmp_path))

    assert message.startswith(f"`{directory}` holds a model that is not served: ")
    assert MISPLACED[path].format(tmp_path) in message


def test_folders_that_hold_no_misplaced_model(tmp_path):
    """Versions, links to them, folders that are still written, and manifests of other programs are left alone."""
    make_tree(tmp_path, ["demo/1", "demo/.2.abc", "web"])
    for folder in ("1", ".2.abc"):
        (tmp_path / "demo" / folder / "model.onnx").write_bytes(b"")
    (tmp_path / "demo" / "latest").symlink_to("1")
    (tmp_path / "web" / "manifest.json").write_text('{"name": "a page"}')

    assert not misplaced_beside(tmp_path)
    assert list_model(tmp_path / "demo") == ([tmp_path / "demo" / "1"], {})
    assert list_model(tmp_path / "web") == ([], {})


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["demo", "demo/v1", "demo/0", "demo/01", "demo/1.0", "demo/-1", ""], "must end in a version"),
        (["1"], "has no name before the version"),
        ([".x/1", "a b/1", "models/bge small/1"], r"invalid model name: `(\.x|a b|bge small)`"),
    ],
)
def test_invalid_model_paths(paths, message):
    """Name and version are the last two parts of a path; the error names the part that is wrong or missing."""
    assert parse_model_path("/srv/demo/1/") == ("demo", "1")
    for path in paths:
        with pytest.raises(ValueError, match=message):
            parse_model_path(path)


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({"max_seq_length": 64}, True),
        ({"similarity_fn_name": "dot"}, True),
        ({"pooling": ("mean",)}, True),
        ({"pooling": "cls"}, False),
        ({"normalize": True}, False),
        ({"layers": ("dense tanh",)}, False),
        ({"prompts": {"query": "ask: "}}, False),
        ({"prompts": {"": "ask: "}, "default_prompt_name": ""}, False),
    ],
)
def test_space_is_that_of_settings(changes, is_same):
    """Settings that decide where a text lands change the space; lengths and similarity do not."""
    task = create_task("embedding", Tokenizer(build_tokenizer(VOCAB)), EmbeddingSettings(pooling="mean"))

    space = space_of(task, "00" * 32)

    assert SPACE.fullmatch(space)
    assert (space_of(task.with_settings(**changes), "00" * 32) == space) == is_same


def test_space_is_that_of_weights_and_tokenizer():
    """Other weights, another vocabulary and another task are other spaces; a task without vectors has none."""
    settings = {"embedding": EmbeddingSettings(), "token-embedding": TokenEmbeddingSettings()}
    settings["regression"] = RegressionSettings()
    tasks = [create_task(name, Tokenizer(build_tokenizer(VOCAB)), item) for name, item in settings.items()]
    tasks.insert(0, replace(tasks[0], tokenizer=Tokenizer(build_tokenizer([*VOCAB, "owl"]))))

    spaces = [space_of(tasks[0], "11" * 32), *(space_of(task, "00" * 32) for task in tasks)]

    assert len(set(spaces)) == 5
    assert spaces[-1] == ""
