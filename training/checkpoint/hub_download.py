"""Download checkpoints of the Hugging Face hub into its cache.

Only the files that are read here are downloaded, the weights last: safetensors if there are any, else .bin. Every new
file is compared with the digest that the hub states. HF_HOME, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE are respected,
as in every program with `huggingface_hub`. Its `snapshot_download` is not used: it lists the repository once more, so
that another commit than the checked one may come, and Ctrl-C would wait until the files in its threads are complete.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import filter as matching
from pathlib import Path

import huggingface_hub
import requests
from huggingface_hub import constants, errors

from tasks.bundle.files import atomic_write, sha256
from tasks.text.json_files import read_json_value
from tasks.text.tokenizer_files import ADDED_TOKENS_FILE, SENTENCEPIECE_FILES, TOKENIZER_FILE, TOKENIZER_FILES
from training.checkpoint.hub_limits import EndlessError, LimitError, Limits, limited
from training.checkpoint.reader import ADAPTER_FILE, CONFIG_FILE
from training.checkpoint.sentence_transformers import LENGTH_FILES, MODEL_CONFIG_FILE, MODULES_FILE
from training.checkpoint.task_card import TASK_FILE
from training.checkpoint.weights import WEIGHTS_FILES, has_weights

ROOT_FILES = (MODULES_FILE, MODEL_CONFIG_FILE)
"""Files of a sentence-transformers folder in addition to its modules."""
FOLDER_FILES = (CONFIG_FILE, TASK_FILE, *LENGTH_FILES, *TOKENIZER_FILES, ADDED_TOKENS_FILE, ADAPTER_FILE)
"""Files of each folder that describe its weights."""
ATTEMPTS = 3
"""Attempts at a file whose connection breaks, which the library does not repeat."""
_UNSTATED_BYTES = 2**33
"""Maximum size of a file whose size the hub does not state."""
_ORIGIN = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", re.ASCII)
_DIGEST = re.compile("[0-9a-f]{40}|[0-9a-f]{64}|")


def download_checkpoint(name: str, revision: str | None = None) -> Path:
    """Return the directory of a repository's checkpoint in the cache; download what is missing.

    Args:
        name: `org/name`.
        revision: branch, tag or commit; None for `main`.

    Raises:
        ValueError: if the repository cannot be used; the message is one line.
    """
    revision = revision or constants.DEFAULT_REVISION
    cached = find_cached(name, revision)
    if cached and cached.name == revision and _is_complete(name, cached):
        return cached  # a commit never changes
    if constants.HF_HUB_OFFLINE:
        if not cached or not has_weights(cached / _module_folders(cached)[0]):
            raise ValueError(
                f"no checkpoint at `{name}`: there is no such directory, and no whole copy of revision `{revision}` in "
                f"`{constants.HF_HUB_CACHE}`; unset HF_HUB_OFFLINE to download it from the hub"
            )
        if not _is_complete(name, cached):
            _note(f"`{name}` was cached by another program, perhaps not whole; download it again online")
        return cached
    try:
        with limited() as limits:
            repository = _list(name, revision)
            _download(repository, limits)
            _record(repository, revision)
            return repository.snapshot
    except (errors.HFValidationError, LimitError, OSError, RuntimeError, KeyError) as error:
        found = _translate(error, name, revision)  # the last two are of redirects to each other, and to nowhere
        if not (isinstance(found, _UnreachableError) and cached and _is_complete(name, cached)):
            raise found from error
        _note(f"{found}; its copy in the cache is taken, commit {cached.name[:12]}")
        return cached


def find_cached(name: str, revision: str | None = None) -> Path | None:
    """Return the directory of a repository in the cache, perhaps without some files; None if there is none."""
    for file in (CONFIG_FILE, MODULES_FILE):
        try:
            found = huggingface_hub.try_to_load_from_cache(name, file, revision=revision)
        except errors.HFValidationError:
            return None
        if isinstance(found, str):
            return Path(found).parent
    return None


def _is_complete(name: str, cached: Path) -> bool:
    """Return whether each file of a commit is in the cache or known not to exist, and there are weights."""
    files = (*ROOT_FILES, *FOLDER_FILES)
    known = [huggingface_hub.try_to_load_from_cache(name, file, revision=cached.name) for file in files]
    return None not in known and has_weights(cached / _module_folders(cached)[0])


# Listing


@dataclass(frozen=True)
class _Repository:
    """Files of a repository at a commit."""

    name: str
    commit: str
    sizes: Mapping[str, int]
    """Size of each file in bytes, by its path."""
    digests: Mapping[str, str]
    """SHA-256 of each large file, and Git's SHA-1 of others. They name the cached files."""

    @property
    def folder(self) -> Path:
        """Folder in the cache."""
        return Path(constants.HF_HUB_CACHE, f"models--{self.name.replace('/', '--')}")

    @property
    def snapshot(self) -> Path:
        """Folder of the commit in the cache."""
        return self.folder / "snapshots" / self.commit


def _list(name: str, revision: str) -> _Repository:
    api = huggingface_hub.HfApi(library_name="bertline")
    try:
        info = api.model_info(name, revision=revision, files_metadata=True, timeout=constants.HF_HUB_ETAG_TIMEOUT)
        # no names of folders, drives or files outside the repository
        inside = [file for file in info.siblings or [] if file.rfilename.isprintable() and "\\" not in file.rfilename]
        files = {file.rfilename: file for file in inside if not {"", ".", ".."} & {*file.rfilename.split("/")}}
        sizes = {path: file.size or 0 for path, file in files.items()}
        digests = {path: file.lfs.sha256 if file.lfs else file.blob_id or "" for path, file in files.items()}
        is_hub = _ORIGIN.fullmatch(f"{info.id}@{info.sha}") and all(map(_DIGEST.fullmatch, digests.values()))
        if not is_hub or min(sizes.values(), default=0) < 0:
            raise TypeError("commit, digest or size")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, errors.HFValidationError | OSError) and not isinstance(error, requests.JSONDecodeError):
            raise
        raise ValueError(
            f"`{constants.ENDPOINT}` does not answer as the Hugging Face hub; check HF_ENDPOINT"
        ) from error
    if info.id != name:
        _note(f"`{name}` is now `{info.id}` on the hub")
    return _Repository(info.id, str(info.sha), sizes, digests)


# Files


def needed_files(files: Iterable[str], folders: Sequence[str] = ("",)) -> list[str]:
    """Return the paths of the files that make a checkpoint, weights last.

    Args:
        files: paths of all files of the repository.
        folders: folders of the modules of sentence-transformers, the network's first; the root for other checkpoints.
    """
    there = set(files)
    needed, weights = list(ROOT_FILES), list[str]()
    for folder in folders:
        needed += _join(folder, *FOLDER_FILES)
        if not there & set(_join(folder, TOKENIZER_FILE)):
            needed += _join(folder, *SENTENCEPIECE_FILES)
        for file in [file for file in _join(folder, *WEIGHTS_FILES) if file in there][:1]:
            stem, _, suffix = file.removesuffix(".index.json").rpartition(".")
            weights += [file, *(sorted(matching(there, f"{stem}-*.{suffix}")) if file.endswith(".json") else [])]
    return list(dict.fromkeys(file for file in [*needed, *weights] if file in there))


def _join(folder: str, *names: str) -> list[str]:
    return [f"{folder}/{name}" if folder else name for name in names]


def _module_folders(directory: Path) -> list[str]:
    """Return the folders of the modules of sentence-transformers; the root for other checkpoints, and broken files."""
    path = directory / MODULES_FILE
    try:
        modules = read_json_value(path) if path.is_file() else []
        folders = [str(item["path"]).strip("/") for item in modules]
    except (ValueError, KeyError, TypeError):  # reading the checkpoint reports what is wrong
        folders = []
    return folders or [""]


def _download(repository: _Repository, limits: Limits) -> None:
    """Download the files of a checkpoint that are not in the cache."""
    if MODULES_FILE in repository.sizes:
        _fetch(repository, [MODULES_FILE], limits)
    folders = _module_folders(repository.snapshot)
    files = needed_files(repository.sizes, folders)
    config, adapter, *weights = _join(folders[0], CONFIG_FILE, ADAPTER_FILE, *WEIGHTS_FILES)
    if config not in files:
        hint = "holds an adapter alone; merge it into its model, and save that (peft: merge_and_unload)"
        raise ValueError(
            f"not a checkpoint: `{repository.name}` of the hub {hint if adapter in files else f'has no {config}'}"
        )
    if not set(files) & set(weights):
        raise ValueError(f"`{repository.name}` of the hub has no weights as `{weights[0]}` or `{weights[2]}`")
    missing = [file for file in files if not (repository.snapshot / file).is_file()]
    if missing:
        megabytes = sum(repository.sizes[file] for file in missing) / 1e6
        print(f"downloading `{repository.name}`, commit {repository.commit[:12]}: {megabytes:,.1f} MB", file=sys.stderr)
    _fetch(repository, missing, limits)


def _fetch(repository: _Repository, files: Iterable[str], limits: Limits) -> None:
    """Download files into the cache, and check their digests; remove a damaged one."""
    for file in files:
        if (repository.snapshot / file).is_file():
            continue
        limits.start(repository.sizes[file] or _UNSTATED_BYTES)
        try:
            is_whole = _has_digest(_fetch_file(repository, file), repository.digests[file])
        except EndlessError:
            _remove(repository, file)
            raise
        except OSError as error:
            is_too_long = _status(error) == requests.codes.requested_range_not_satisfiable
            if not is_too_long and "Consistency check failed" not in str(error):
                raise
            is_whole = False
        if not is_whole:
            _remove(repository, file)
            raise ValueError(f"`{file}` of `{repository.name}` arrived damaged and was removed; run the command again")


def _fetch_file(repository: _Repository, file: str) -> Path:
    """Download a file; go on if the connection breaks in the middle."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return Path(huggingface_hub.hf_hub_download(repository.name, file, revision=repository.commit))
        except requests.exceptions.ChunkedEncodingError:
            if attempt == ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


def _has_digest(path: Path, expected: str) -> bool:
    """Return whether a file has a SHA-256 or, if it is not large, Git's SHA-1; true if none is stated."""
    if len(expected) == 64:
        return sha256(path) == expected
    data = path.read_bytes()
    return expected in ("", hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest())


def _remove(repository: _Repository, file: str) -> None:
    """Remove a damaged file from the cache, also what was downloaded of it."""
    path = repository.snapshot / file
    blob = path.resolve() if path.exists() else repository.folder / "blobs" / repository.digests[file]
    for item in (path, blob, blob.with_name(f"{blob.name}.incomplete")):
        item.unlink(missing_ok=True)


def _record(repository: _Repository, revision: str) -> None:
    """Record in the cache that a commit is whole, and that a revision is this commit, as the library would."""
    absent = repository.folder / ".no_exist" / repository.commit
    absent.mkdir(parents=True, exist_ok=True)
    for file in (*ROOT_FILES, *FOLDER_FILES):
        if not (repository.snapshot / file).is_file():
            (absent / file).touch()
    if revision != repository.commit:
        atomic_write(repository.folder / "refs" / revision, repository.commit.encode())


# Errors


class _UnreachableError(ValueError):
    """The hub cannot be reached."""


def _translate(error: Exception, name: str, revision: str) -> Exception:
    """Return the error of one line for an error of the library."""
    hub = constants.ENDPOINT
    if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    if isinstance(error, errors.HFValidationError):
        return ValueError(f"no checkpoint at `{name}`: no such directory, and no name of a repository")
    if isinstance(error, LimitError):
        return ValueError(f"{hub} {error} for `{name}`; check HF_ENDPOINT, or try again later")
    if isinstance(error, errors.HfHubHTTPError):
        return ValueError(_refusal(error, name, revision))
    if isinstance(error, requests.ConnectionError | requests.Timeout):
        return _UnreachableError(f"`{name}` is no directory here, and {hub} cannot be reached ({_reason(error)})")
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return ValueError(f"the download of `{name}` broke off ({_reason(error)}); run the command again to go on")
    if isinstance(error, OSError) and error.errno and error.filename:
        return error
    return ValueError(f"cannot download `{name}` from {hub}: {' '.join(str(error).split())[:300]}")


def _reason(error: requests.RequestException) -> str:
    """Return the innermost reason of a broken connection, such as `Connection refused`."""
    inner: BaseException = error
    while reason := inner.__cause__ or inner.__context__:
        inner = reason
    text = (isinstance(inner, OSError) and inner.strerror) or str(inner) or type(inner).__name__
    proxy = "proxy: " if isinstance(error, requests.exceptions.ProxyError) else ""
    return f"{proxy}{' '.join(text.split())[:200]}"


def _refusal(error: errors.HfHubHTTPError, name: str, revision: str) -> str:
    """Return why the hub refuses, and what to do."""
    hub, status = constants.ENDPOINT, _status(error)
    if isinstance(error, errors.GatedRepoError):
        return f"`{name}` is gated: accept its terms at {hub}/{name}, and set HF_TOKEN to a token of your account"
    if status == requests.codes.unauthorized and "credentials" in (error.server_message or ""):
        return f"{hub} rejects the token; set HF_TOKEN to a valid one, or unset it, or run `hf auth login`"
    if isinstance(error, errors.RepositoryNotFoundError) or status == requests.codes.unauthorized:
        return (
            f"no checkpoint at `{name}`: there is no such directory here and no such repository on {hub}; "
            "check the name, and set HF_TOKEN if it is private"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"`{name}` has no revision `{revision}`; give a branch, a tag or a whole commit"
    return f"{hub} answers {status} for `{name}` ({error.server_message or 'no reason given'}); try again later"


def _status(error: OSError) -> int:
    """Return the status code of the hub's reply; 0 for other errors."""
    return getattr(getattr(error, "response", None), "status_code", 0)


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)
