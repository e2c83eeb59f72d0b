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
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from tasks.bundle.files import atomic_directory, atomic_write, locked, name_in_errors
from tasks.text.json_files import read_json
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
                for name in (RECIPE_FILE, LOCK_FILE):  # it failed before its first step
                    (self.path / name).unlink(missing_ok=True)
                with suppress(OSError):  # it holds other files
                    self.path.rmdir()

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
            try:
                before = read_json(path)
            except ValueError as error:
                raise RunMismatchError(f"{error}; correct it, or choose another run directory") from error
            self._record.check(before, self.path, is_finished=is_finished)
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
        # The file is opened here, as errors of torch.save lack the reason
        with atomic_directory(path) as directory:
            file = directory / STATE_FILE
            with name_in_errors(file), open(file, "wb") as stream:
                try:
                    torch.save(state, stream)
                except RuntimeError as error:
                    if isinstance(error.__context__, OSError):
                        raise error.__context__ from None
                    raise
        # Neither this run nor one that resumes from the last step state needs the others
        steps, bests = self.states(), self.states("best")
        last_step = _step_of(steps[-1]) if steps else 0
        needed = [*[best for best in bests if _step_of(best) <= last_step][-1:], *bests[-1:]]
        for old in [*steps[:-keep], *(best for best in bests if best not in needed)]:
            shutil.rmtree(old)

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
            with self._reading(states[-1]) as state:
                model.load_state_dict(state["model"])
                optimizer.load_state_dict(state["optimizer"])
                monitor.load_state_dict(state["loss_monitor"])
                progress = Progress(**state["progress"])
        self.world.on_main(lambda: self._resume_after(progress.step))
        if not self.states("best"):
            progress.best_score = None
        return progress

    def _resume_after(self, step: int) -> None:
        from training.loop.events import Events  # slow to import

        for best in self.states("best"):
            if _step_of(best) > step:  # from another attempt, perhaps with other settings
                shutil.rmtree(best)
        lines = [line for line in read_metrics(self.path) if line["step"] <= step]
        atomic_write(self.path / METRICS_FILE, "".join(json.dumps(line) + "\n" for line in lines).encode())
        if step:
            print(f"resuming after step {step:,}", flush=True)
        else:
            shutil.rmtree(self.path / TENSORBOARD_DIR, ignore_errors=True)
        self._events = Events(self.path / TENSORBOARD_DIR, step)

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
        with self._reading(bests[-1]) as state:
            model.load_state_dict(state["model"])
            return Progress(**state["progress"])

    @contextmanager
    def _reading(self, directory: Path) -> Iterator[dict[str, Any]]:
        """Yield a state. Errors in reading and loading it, which have many types, become a ValueError that names it."""
        try:
            state = torch.load(directory / STATE_FILE, map_location=self.world.device, weights_only=True)
            self._record.check(state["recipe"], self.path, is_finished=False)
            yield state
        except RunMismatchError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise ValueError(
                f"cannot read state `{directory / STATE_FILE}`: {reason}; remove `{directory}` to resume from the "
                "state before it, or to start again"
            ) from error

    def log(self, values: Mapping[str, Any]) -> None:
        """Append a line to metrics.jsonl and TensorBoard's events; on the main process only."""
        if self.world.is_main:
            path = self.path / METRICS_FILE
            with name_in_errors(path), open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(values) + "\n")
            assert self._events
            scalars = {}
            for name, value in values.items():
                if isinstance(value, int | float) and name != "step":
                    tag = name.replace("eval_", "eval/", 1) if name.startswith("eval_") else f"train/{name}"
                    scalars[tag] = value
            self._events.add(values["step"], scalars)

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
    if not path.is_file():
        return []
    found = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            found.append(json.loads(line))
        except ValueError as error:
            raise ValueError(
                f"`{path}`, line {number}: broken JSON ({error}); correct it, or choose another run directory"
            ) from error
    return found


def _copy_to_cpu(value: Any) -> Any:
    """Copy nested state, so that later steps do not change it."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _copy_to_cpu(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copy_to_cpu(item) for item in value)
    return value
