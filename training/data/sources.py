"""Sources of data: digests and names of files, and data sets of the Hugging Face hub.

Those need a network and the library `datasets` (dependency group `hub`).

    python -m training.finetune classification --train hf:nyu-mll/glue,config=sst2,split=train ...

The id is followed by `split=NAME` and, if needed, by `config=NAME` and `revision=NAME`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.bundle.files import sha256

_PREFIX = "hf:"
_OPTIONS = ("config", "split", "revision")


def is_hub(path: Path) -> bool:
    """Return whether a path names a data set of the hub."""
    return str(path).startswith(_PREFIX)


def read_hub(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the location and the values of each row; class numbers become class names.

    Raises:
        ValueError: if the library is not installed, or the data set cannot be loaded.
    """
    name, options = hub_source(path)
    try:
        import datasets

        dataset = datasets.load_dataset(
            name, options.get("config"), split=options["split"], revision=options.get("revision")
        )
    except ImportError:
        raise ValueError(
            f"`{path}` needs the library `datasets`: python -m pip install --group hub -c constraints.txt"
        ) from None
    except Exception as error:  # the library raises many types: no network, no such data set, no such split
        raise ValueError(f"cannot load `{path}`: {error or type(error).__name__}") from error
    names = class_names(dataset.features)
    for number, row in enumerate(dataset, start=1):
        location = f"`{path}`, row {number}"
        yield location, with_class_names(location, row, names)


def source_digest(path: Path) -> str:
    """Return the SHA-256 of a file, or of the rows of a data set of the hub as JSON."""
    if not is_hub(path):
        return sha256(path)
    digest = hashlib.sha256()
    for _, row in read_hub(path):
        digest.update(json.dumps(row, default=str).encode())
    return digest.hexdigest()


def source_names(paths: Sequence[Path]) -> list[str]:
    """Return a short name for each file or data set: the file name, with parent folders if two files share it."""
    names = []
    for path in paths:
        others = [other for other in paths if other != path]
        tails = [() if is_hub(path) else path.parts[-size:] for size in range(1, len(path.parts))]
        unique = (tail for tail in tails if tail and all(other.parts[-len(tail) :] != tail for other in others))
        names.append(str(Path(*next(unique, (path,)))))
    return names


def hub_source(path: Path) -> tuple[str, dict[str, str]]:
    """Return the id of a data set, and its options by name: split, config and revision.

    Raises:
        ValueError: if the path is malformed.
    """
    name, *pairs = str(path).removeprefix(_PREFIX).lstrip("/").split(",")
    options = dict(pair.partition("=")[::2] for pair in pairs)
    if not name or "split" not in options or not options.keys() <= set(_OPTIONS) or not all(options.values()):
        raise ValueError(
            f"cannot read `{path}`; expected hf:ID,split=NAME and, if needed, config=NAME and revision=NAME"
        )
    return name, options


def class_names(features: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    """Return the names of classes by column.

    Args:
        features: features of the library `datasets`, or their JSON, by column.
    """
    return {column: names for column, feature in features.items() if (names := _names(feature))}


def _names(feature: Any) -> Sequence[str]:
    """Return the names of a ClassLabel, or of one in lists; empty for others."""
    if isinstance(feature, list) and feature:  # an older form of Sequence
        return _names(feature[0])
    values = feature if isinstance(feature, dict) else getattr(feature, "__dict__", {})
    if "feature" in values:
        return _names(values["feature"])
    names = values.get("names")
    return names if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names) else ()


def with_class_names(location: str, row: Mapping[str, Any], names: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return a row with the names of classes for their numbers, also in lists; -1 means unknown, None.

    Raises:
        ValueError: if a class has no name.
    """

    def named(value: Any, known: Sequence[str]) -> Any:
        if isinstance(value, list):
            return [named(item, known) for item in value]
        if not isinstance(value, int) or isinstance(value, bool):
            return value
        if value >= len(known):
            raise ValueError(f"{location}: class `{value}` is none of the {len(known)} that the data name")
        return known[value] if value >= 0 else None

    return {column: named(value, names[column]) if column in names else value for column, value in row.items()}
