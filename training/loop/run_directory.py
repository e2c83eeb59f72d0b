"""Run directory: recipe, metrics and resumable states.

runs/<name>/recipe.json            stage, recipe, digests of the data
runs/<name>/metrics.jsonl          a line every `log_every` steps, and one for each evaluation
runs/<name>/tensorboard/           the same for TensorBoard
runs/<name>/state/step-00000500/   resumable state: weights, optimizer, progress, recipe
runs/<name>/state/best-00000400/   state with the best dev score, and the best one before the last step state
runs/<name>/checkpoint/            the result
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from tasks.bundle.files import atomic_directory, atomic_write, locked, name_in_errors
from training.checkpoint.weights import has_weights
from training.loop.distributed import World
from training.loop.loss_monitor import LossMonitor
from training.loop.recipe import RECIPE_FILE, RecipeRecord, RunMismatchError
from training.loop.types import Progress

if TYPE_CHECKING:
    from training.loop.events import Events

METRICS_FILE = "metrics.jsonl"
STATE_FILE = "state.pt"
LOCK_FILE = ".lock"
TENSORBOARD_DIR = "tensorboard"

StateKind = Literal["step", "best"]


class RunDirectory:
    """Directory of one run. This process holds a lock on it from `begin` to the end of `with`."""

    def __init__(self, path: Path, world: World) -> None:
        self.path = path
        self.world = world
        self.checkpoint_path = path / "checkpoint"
        self._lock = ExitStack()
        self._is_new = False
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="state")
        self._writing: Future[None] | None = None
        self._events: Events | None = None

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        with self._lock, self._writer, suppress(Exception) if error else nullcontext():  # the first error counts
            self.close()
            if error and self._is_new and not (self.states() or (self.path / METRICS_FILE).exists()):
                self._remove_files_of_unstarted_run()

    def begin(self, record: RecipeRecord) -> bool:
        """Lock the directory, and write recipe.json or compare with it.

        Returns:
            True to train; False if the run is finished.

        Raises:
            RunMismatchError: if a field of the recipe or the stage differs, or a checkpoint lacks weights or recipe.
            ValueError: if another process holds the lock.
        """
        self._record = record
        return self.world.on_main(self._begin)

    def _begin(self) -> bool:
        path = self.path / RECIPE_FILE
        if self.checkpoint_path.exists() and not path.is_file():
            raise RunMismatchError(
                f"`{self.path}` holds a checkpoint without {RECIPE_FILE} (of a grid, or from elsewhere); choose "
                "another run directory"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock.enter_context(locked(self.path, LOCK_FILE))
        is_finished = self.checkpoint_path.exists()
        # A run that failed before its first state has nothing to resume, so its recipe may be corrected in place.
        if path.is_file() and (self.states() or is_finished):
            self._record.check(_json_object(path.read_bytes(), f"`{path}`"), self.path, is_finished=is_finished)
        if is_finished and not has_weights(self.checkpoint_path):
            then = "resumes" if self.states() else "trains again from the start"
            raise RunMismatchError(f"`{self.checkpoint_path}` has no weights; remove it, and the same command {then}")
        self._is_new = not path.is_file()
        atomic_write(path, (json.dumps(self._record.values, indent=2) + "\n").encode())
        self._remove_leftovers()
        if is_finished:
            self.drop_states()
            print(f"`{self.path}` was finished before", flush=True)
        return not is_finished

    def _remove_files_of_unstarted_run(self) -> None:
        """Remove the files of a run that failed before its first step."""
        for name in (RECIPE_FILE, LOCK_FILE):
            (self.path / name).unlink(missing_ok=True)
        with suppress(OSError):  # it holds other files
            self.path.rmdir()

    def _remove_leftovers(self) -> None:
        """Remove files that a killed process left half-written."""
        names = (RECIPE_FILE, METRICS_FILE, self.checkpoint_path.name)
        for leftover in [item for name in names for item in self.path.glob(f".{name}.*")]:
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        for leftover in (self.path / "state").glob(".*"):
            shutil.rmtree(leftover)

    def states(self, kind: StateKind = "step") -> list[Path]:
        """Return the resumable states, oldest first."""
        return sorted((self.path / "state").glob(f"{kind}-*"))

    def save_state(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        progress: Progress,
        monitor: LossMonitor,
        *,
        keep: int,
        kind: StateKind = "step",
    ) -> None:
        """Write a state in the background, unless it exists, then remove states that are no longer needed.

        Args:
            model: network to save.
            optimizer: optimizer of the network.
            progress: progress of the run.
            monitor: monitor of the losses.
            keep: number of step states to keep.
            kind: `step` for a state to resume from, `best` for the state with the best score.
        """
        self.finish_writing()
        path = self.path / "state" / f"{kind}-{progress.step:08d}"
        if self.world.is_main and not path.exists():
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "progress": asdict(progress)}
            snapshot = _copy_to_cpu(state | {"loss_monitor": monitor.state_dict(), "recipe": self._record.values})
            self._writing = self._writer.submit(self._write_state, snapshot, path, keep)

    def _write_state(self, state: Mapping[str, Any], path: Path, keep: int) -> None:
        with atomic_directory(path) as directory:
            _save(state, directory / STATE_FILE)
        for old in self._superseded(keep):
            shutil.rmtree(old)

    def _superseded(self, keep: int) -> list[Path]:
        """Return the states to delete: neither this run nor a run that resumes from the last step state needs them."""
        steps, bests = self.states(), self.states("best")
        last_step = _step_of(steps[-1]) if steps else 0
        before = [best for best in bests if _step_of(best) <= last_step]
        return [*steps[:-keep], *(best for best in bests if best not in (*before[-1:], bests[-1]))]

    def finish_writing(self) -> None:
        """Wait until the last state is written.

        Raises:
            OSError: if it could not be written.
        """
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def load_state(self, model: nn.Module, optimizer: torch.optim.Optimizer, monitor: LossMonitor) -> Progress:
        """Load the last state, if there is one, and drop later lines of the metrics and later best states.

        Raises:
            ValueError: names a state that cannot be read.
        """
        progress = Progress()
        if states := self.states():
            state = self._read_state(states[-1])
            with _naming_state(states[-1]):
                model.load_state_dict(state["model"])
                optimizer.load_state_dict(state["optimizer"])
                monitor.load_state_dict(state["loss_monitor"])
                progress = Progress(**state["progress"])
        self.world.on_main(lambda: self._resume_after(progress.step))
        if not self.states("best"):
            progress.best_score = None
        return progress

    def _resume_after(self, step: int) -> None:
        if step:
            print(f"resuming after step {step:,}", flush=True)
            self._warn_if_gone(step)
        for best in self.states("best"):
            if _step_of(best) > step:  # from another attempt, perhaps with other settings
                shutil.rmtree(best)
        lines = [line for line in read_metrics(self.path) if line["step"] <= step]
        atomic_write(self.path / METRICS_FILE, "".join(json.dumps(line) + "\n" for line in lines).encode())
        self._open_events(step)

    def load_best(self, model: nn.Module) -> Progress:
        """Load the weights of the best state.

        Returns:
            Progress of the run at these weights.

        Raises:
            ValueError: if there is none, or it cannot be read.
        """
        self.finish_writing()
        if not (bests := self.states("best")):
            raise ValueError(f"all scores on dev were NaN or infinite in `{self.path}`; use --select last")
        state = self._read_state(bests[-1])
        with _naming_state(bests[-1]):
            model.load_state_dict(state["model"])
            return Progress(**state["progress"])

    def _read_state(self, directory: Path) -> dict[str, Any]:
        with _naming_state(directory):
            state = torch.load(directory / STATE_FILE, map_location=self.world.device, weights_only=True)
        if not isinstance(state, dict) or not all(isinstance(state.get(key), dict) for key in _STATE_KEYS):
            raise _broken_state(directory, f"expected a dictionary of {', '.join(_STATE_KEYS)}")
        self._record.check(state["recipe"], self.path, is_finished=False)
        return state

    def log(self, values: Mapping[str, Any]) -> None:
        """Append a line to metrics.jsonl and TensorBoard's events; on the main process only."""
        if self.world.is_main:
            path = self.path / METRICS_FILE
            self._warn_if_gone(values["step"])
            with name_in_errors(path), open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(values) + "\n")
            assert self._events
            numbers = {name: value for name, value in values.items() if _is_number(value) and name != "step"}
            self._events.add(values["step"], {_tag(name): value for name, value in numbers.items()})

    def _warn_if_gone(self, step: int) -> None:
        """Warn if metrics.jsonl was removed, as its curves would not show that. It exists from the first step on."""
        if not (path := self.path / METRICS_FILE).is_file():
            print(f"warning: `{path}` is gone; the metrics start again at step {step:,}", file=sys.stderr, flush=True)

    def _open_events(self, step: int) -> None:
        from training.loop.events import Events  # slow to import

        directory = self.path / TENSORBOARD_DIR
        if step == 0:
            shutil.rmtree(directory, ignore_errors=True)
        self._events = Events(directory, step)

    def close(self) -> None:
        """Wait for the last state, and close the events."""
        try:
            self.finish_writing()
        finally:
            if self._events is not None:
                self._events.close()

    def drop_states(self) -> None:
        """Remove the resumable states of a finished run."""
        if self.world.is_main:
            shutil.rmtree(self.path / "state", ignore_errors=True)


def _step_of(state: Path) -> int:
    return int(state.name.rpartition("-")[2])


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Read the lines of a run's metrics, without a last line that a kill cut short.

    Raises:
        ValueError: names a damaged line.
    """
    path = run / METRICS_FILE
    lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
    return [_metrics_line(line, f"`{path}`, line {number}") for number, line in enumerate(lines, start=1)]


def _metrics_line(data: bytes, location: str) -> dict[str, Any]:
    values = _json_object(data, location)
    if not isinstance(values.get("step"), int):
        raise ValueError(f"{location}: there is no `step`; {_HINT}")
    for name, value in values.items():
        if not _is_number(value) and name != "warning":
            raise ValueError(f"{location}: `{name}` is not a number; {_HINT}")
    return values


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _tag(name: str) -> str:
    """Return TensorBoard's name of a key of the metrics."""
    return f"eval/{name.removeprefix('eval_')}" if name.startswith("eval_") else f"train/{name}"


def _json_object(data: bytes, location: str) -> dict[str, Any]:
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{location}: broken JSON ({error}); {_HINT}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{location}: expected a JSON object; {_HINT}")
    return values


_HINT = "correct it, or choose another run directory"


_STATE_KEYS = ("model", "optimizer", "progress", "loss_monitor", "recipe")


@contextmanager
def _naming_state(directory: Path) -> Iterator[None]:
    """Turn errors in reading a state, which are of many kinds, into a ValueError that names it."""
    try:
        yield
    except Exception as error:
        raise _broken_state(directory, error) from error


def _broken_state(directory: Path, reason: object) -> ValueError:
    words = " ".join(str(reason).split())[:200] or type(reason).__name__
    return ValueError(
        f"cannot read state `{directory / STATE_FILE}`: {words}; remove `{directory}` to resume from the state before "
        "it, or to start again"
    )


def _save(state: Mapping[str, Any], path: Path) -> None:
    """Write a state to a file opened here, as errors of torch.save lack the reason."""
    with name_in_errors(path), open(path, "wb") as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def _copy_to_cpu(value: Any) -> Any:
    """Copy nested state, so that later steps do not change it."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _copy_to_cpu(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copy_to_cpu(item) for item in value)
    return value
