"""A run directory: what was asked for, how it went, and states to go on from.

runs/<name>/recipe.json            what was asked for, with digests of the data
runs/<name>/metrics.jsonl          a line every `log_every` steps, and one an evaluation
runs/<name>/tensorboard/           the same for TensorBoard
runs/<name>/state/step-00000500/   resumable state: weights, optimizer, position, recipe
runs/<name>/state/best-00000400/   the one with the best dev score, and the best one before the last step state
runs/<name>/checkpoint/            the result
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from tasks.files import atomic_directory, atomic_write, locked, name_in_errors
from training.loop.distributed import World
from training.loop.recipe import RECIPE_FILE, RecipeRecord, RunMismatchError
from training.loop.types import Progress
from training.renamed_fields import with_new_names
from training.weights import has_weights

if TYPE_CHECKING:
    from training.loop.events import Events
    from training.loop.loss_monitor import LossMonitor

METRICS_FILE = "metrics.jsonl"
STATE_FILE = "state.pt"
LOCK_FILE = ".lock"
TENSORBOARD_DIR = "tensorboard"

StateKind = Literal["step", "best"]


class RunDirectory:
    """A run directory: its recipe, metrics and states. It is this process's own from `begin` to the end of `with`."""

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
                self._forget()

    def begin(self, asked: RecipeRecord) -> bool:
        """Write down what is asked for, or compare with what the run was started with.

        Returns:
            Whether the run is to be gone on with; if not, its result is there, and nothing is left to do.

        Raises:
            RunMismatchError: if a field of the recipe or the stage differs, or a checkpoint lacks weights or recipe.
            ValueError: when another process is at the run.
        """
        self._asked = asked
        return self.world.on_main(self._begin)

    def _begin(self) -> bool:
        path = self.path / RECIPE_FILE
        if self.checkpoint_path.exists() and not path.is_file():
            raise RunMismatchError(
                f"`{self.path}` holds the checkpoint of a grid or of others; choose another run directory"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock.enter_context(locked(self.path, LOCK_FILE))
        is_finished = self.checkpoint_path.exists()
        # A run that failed before its first state leaves nothing to go on from: its mistake may be mended in place.
        if path.is_file() and (self.states() or is_finished):
            self._asked.check(_json_object(path.read_bytes(), f"`{path}`"), self.path, is_finished=is_finished)
        if is_finished and not has_weights(self.checkpoint_path):
            raise RunMismatchError(f"`{self.checkpoint_path}` has no weights; remove it, and the same command goes on")
        self._is_new = not path.is_file()
        atomic_write(path, (json.dumps(self._asked.values, indent=2) + "\n").encode())
        self._sweep_up()
        if is_finished:
            self.drop_states()
            print(f"`{self.path}` was finished before", flush=True)
        return not is_finished

    def _forget(self) -> None:
        """Leave nothing of a run that was refused before its first step."""
        for name in (RECIPE_FILE, LOCK_FILE):
            (self.path / name).unlink(missing_ok=True)
        with suppress(OSError):  # there is something else in it
            self.path.rmdir()

    def _sweep_up(self) -> None:
        """Remove what was half-written by a process that was killed."""
        names = (RECIPE_FILE, METRICS_FILE, self.checkpoint_path.name)
        for leftover in [item for name in names for item in self.path.glob(f".{name}.*")]:
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        for leftover in (self.path / "state").glob(".*"):
            shutil.rmtree(leftover)

    def states(self, kind: StateKind = "step") -> list[Path]:
        """Resumable states, oldest first."""
        return sorted((self.path / "state").glob(f"{kind}-*"))

    def save_state(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        position: Progress,
        watch: LossMonitor,
        *,
        keep: int,
        kind: StateKind = "step",
    ) -> None:
        """Write a state while training goes on, unless it is there, then drop those that are no longer needed.

        Args:
            keep: how many step states stay.
        """
        self.finish_writing()
        path = self.path / "state" / f"{kind}-{position.step:08d}"
        if self.world.is_main and not path.exists():
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "position": asdict(position)}
            snapshot = _copy_to_cpu(state | {"watch": watch.state_dict(), "recipe": self._asked.values})
            self._writing = self._writer.submit(self._write_state, snapshot, path, keep)

    def _write_state(self, state: Mapping[str, Any], path: Path, keep: int) -> None:
        with atomic_directory(path) as directory:
            _save(state, directory / STATE_FILE)
        for old in self._superseded(keep):
            shutil.rmtree(old)

    def _superseded(self, keep: int) -> list[Path]:
        """States that no run needs: neither this one, nor one that goes on from the last step state after a kill."""
        steps, bests = self.states(), self.states("best")
        last_step = _step_of(steps[-1]) if steps else 0
        before = [best for best in bests if _step_of(best) <= last_step]
        return [*steps[:-keep], *(best for best in bests if best not in (*before[-1:], bests[-1]))]

    def finish_writing(self) -> None:
        """Wait for the state that is being written.

        Raises:
            OSError: when it could not be written.
        """
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def load_state(self, model: nn.Module, optimizer: torch.optim.Optimizer, watch: LossMonitor) -> Progress:
        """Go on from the last state, if there is one; later lines of the metrics and best states are dropped.

        Raises:
            ValueError: name_in_errors a state that cannot be read.
        """
        states = self.states()
        position = self._restore(states[-1], model, optimizer, watch) if states else Progress()
        self.world.on_main(lambda: self._go_on_from(position.step))
        if not self.states("best"):
            position.best_score = None
        return position

    def _restore(
        self, directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer, watch: LossMonitor
    ) -> Progress:
        state = self._read_state(directory)
        self._asked.check(state["recipe"], self.path, is_finished=False)
        try:
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            watch.load_state_dict(state.get("watch", {}))
            return Progress(**state["position"])
        except Exception as error:  # what is not as it should be raises errors of many kinds
            raise _broken_state(directory, error) from error

    def _go_on_from(self, step: int) -> None:
        if step:
            print(f"going on after step {step:,}", flush=True)
            self._note_if_gone(step)
        for best in self.states("best"):
            if _step_of(best) > step:  # of another attempt, perhaps with other settings
                shutil.rmtree(best)
        kept = [line for line in read_metrics(self.path) if line["step"] <= step]
        atomic_write(self.path / METRICS_FILE, "".join(json.dumps(line) + "\n" for line in kept).encode())
        self._open_events(step)

    def load_best(self, model: nn.Module) -> Progress:
        """Load the weights of the best state.

        Returns:
            How far the run had come with them.

        Raises:
            ValueError: when there is none, or it cannot be read.
        """
        self.finish_writing()
        if not (bests := self.states("best")):
            raise ValueError(f"no score on dev was a number in `{self.path}`; take --select last")
        directory = bests[-1]
        state = self._read_state(directory)
        self._asked.check(state["recipe"], self.path, is_finished=False)
        try:
            model.load_state_dict(state["model"])
            return Progress(**state["position"])
        except Exception as error:
            raise _broken_state(directory, error) from error

    def _read_state(self, directory: Path) -> dict[str, Any]:
        try:
            state = torch.load(directory / STATE_FILE, map_location=self.world.device, weights_only=True)
        except Exception as error:  # a damaged file raises errors of many kinds
            raise _broken_state(directory, error) from error
        if not isinstance(state, dict) or not all(isinstance(state.get(key), dict) for key in _STATE_KEYS):
            raise _broken_state(directory, f"expected a dictionary of {', '.join(_STATE_KEYS)}")
        return state

    def log(self, values: Mapping[str, Any]) -> None:
        """Append a line to the metrics."""
        if self.world.is_main:
            path = self.path / METRICS_FILE
            self._note_if_gone(values["step"])
            with name_in_errors(path), open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(values) + "\n")
            assert self._events
            numbers = {name: value for name, value in values.items() if _is_number(value) and name != "step"}
            self._events.add(values["step"], {_tag(name): value for name, value in numbers.items()})

    def _note_if_gone(self, step: int) -> None:
        """Curves do not tell where their beginning has been removed; the file is there from the first step on."""
        if not (path := self.path / METRICS_FILE).is_file():
            print(f"warning: `{path}` is gone; the metrics begin anew at step {step:,}", file=sys.stderr, flush=True)

    def _open_events(self, step: int) -> None:
        from training.loop.events import Events  # here, as it takes a while to import

        directory = self.path / TENSORBOARD_DIR
        if step == 0:
            shutil.rmtree(directory, ignore_errors=True)
        self._events = Events(directory, step)

    def close(self) -> None:
        """Finish writing."""
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
    """The lines of a run's metrics; a last line that was cut short by a kill is left out.

    Raises:
        ValueError: name_in_errors a line that is damaged.
    """
    path = run / METRICS_FILE
    lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
    return [_metrics_line(line, f"`{path}`, line {number}") for number, line in enumerate(lines, start=1)]


def _metrics_line(data: bytes, place: str) -> dict[str, Any]:
    values = with_new_names(_json_object(data, place))
    if not isinstance(values.get("step"), int):
        raise ValueError(f"{place}: there is no `step`; {_MEND}")
    for name, value in values.items():
        if not _is_number(value) and name != "warning":
            raise ValueError(f"{place}: `{name}` is no number; {_MEND}")
    return values


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _tag(name: str) -> str:
    """What TensorBoard calls a key of the metrics."""
    return f"eval/{name.removeprefix('eval_')}" if name.startswith("eval_") else f"train/{name}"


def _json_object(data: bytes, place: str) -> dict[str, Any]:
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place}: broken JSON ({error}); {_MEND}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{place}: expected a JSON object; {_MEND}")
    return values


_MEND = "mend it, or choose another run directory"


_STATE_KEYS = ("model", "optimizer", "position", "recipe")


def _broken_state(directory: Path, reason: object) -> ValueError:
    words = " ".join(str(reason).split())[:200] or type(reason).__name__
    return ValueError(
        f"cannot read state `{directory / STATE_FILE}`: {words}; remove `{directory}` to go on from the one before, "
        "or to begin anew"
    )


def _save(state: Mapping[str, Any], path: Path) -> None:
    """Write a state through a file of ours: torch's own error does not say why."""
    with name_in_errors(path), open(path, "wb") as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def _copy_to_cpu(value: Any) -> Any:
    """A copy of nested state that later steps do not change."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _copy_to_cpu(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copy_to_cpu(item) for item in value)
    return value
