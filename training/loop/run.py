"""A run directory: what was asked for, how it went, and states to go on from.

runs/<name>/recipe.json            what was asked for, with digests of the data
runs/<name>/metrics.jsonl          a line every `log_every` steps, and one an evaluation
runs/<name>/tensorboard/           the same for TensorBoard
runs/<name>/state/step-00000500/   resumable state: weights, optimizer, position, recipe
runs/<name>/state/best-00000400/   the one with the best dev score
runs/<name>/checkpoint/            the result
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from tasks.files import atomic_directory, atomic_write
from training.loop.distributed import World

METRICS_FILE = "metrics.jsonl"
RECIPE_FILE = "recipe.json"
STATE_FILE = "state.pt"
TENSORBOARD_DIR = "tensorboard"

StateKind = Literal["step", "best"]


@dataclass
class Position:
    """How far a run has come."""

    step: int = 0
    phase: int = 0
    epoch: int = 0
    """Of the phase."""
    index: int = 0
    """Global batch within the epoch."""
    num_tokens: int = 0
    """Tokens seen, over all processes, without padding."""
    elapsed_s: float = 0.0
    """Seconds of training, interruptions left out."""
    best_score: float | None = None
    """Of the evaluations so far, higher being better."""


class Run:
    """A run directory: its recipe, metrics and states."""

    def __init__(self, path: Path, world: World) -> None:
        self.path = path
        self.world = world
        self.checkpoint_path = path / "checkpoint"
        self._recipe: Mapping[str, Any] = {}
        self._may_differ: tuple[str, ...] = ()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="state")
        self._writing: Future[None] | None = None
        self._tensorboard: Any = None

    def check_recipe(self, recipe: Mapping[str, Any], *, may_differ: tuple[str, ...] = ()) -> None:
        """Write down the recipe, or compare with the one that the run was started with.

        Raises:
            ValueError: naming the field that differs.
        """
        path = self.path / RECIPE_FILE
        self._recipe, self._may_differ = recipe, may_differ
        # A run that failed before its first state leaves nothing to go on from: its mistake may be mended in place.
        if path.is_file() and (self.states() or self.checkpoint_path.exists()):
            self._compare(_json_object(path.read_text(encoding="utf-8"), f"`{path}`"))
        self.world.barrier()
        if self.world.is_main:
            atomic_write(path, (json.dumps(recipe, indent=2) + "\n").encode())

    def _compare(self, before: Mapping[str, Any]) -> None:
        for key in self._recipe.keys() | before.keys():
            was, now = before.get(key), self._recipe.get(key)
            if key not in self._may_differ and was != now:
                raise ValueError(
                    f"run `{self.path}` was started with {key} `{was}`, not `{now}`; choose another --run-dir"
                )

    def states(self, kind: StateKind = "step") -> list[Path]:
        """Resumable states, oldest first."""
        return sorted((self.path / "state").glob(f"{kind}-*"))

    def save_state(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        position: Position,
        *,
        keep: int,
        kind: StateKind = "step",
    ) -> None:
        """Write a state while training goes on, then drop the oldest ones of its kind."""
        self.finish_writing()
        if self.world.is_main:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "position": asdict(position)}
            snapshot = _copy_to_cpu(state | {"recipe": dict(self._recipe)})
            self._writing = self._writer.submit(self._write_state, snapshot, kind, keep)

    def _write_state(self, state: Mapping[str, Any], kind: StateKind, keep: int) -> None:
        path = self.path / "state" / f"{kind}-{state['position']['step']:08d}"
        with atomic_directory(path, replace=True) as directory:
            torch.save(state, directory / STATE_FILE)
        for old in self.states(kind)[:-keep]:
            shutil.rmtree(old)

    def finish_writing(self) -> None:
        """Wait for the state that is being written.

        Raises:
            OSError: when it could not be written.
        """
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def load_state(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Position:
        """Go on from the last state, if there is one; later lines of the metrics are dropped.

        Raises:
            ValueError: naming a state that cannot be read.
        """
        states = self.states()
        position = Position()
        if states:
            state = self._read_state(states[-1])
            self._compare(state["recipe"])
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            position = Position(**state["position"])
        self.world.barrier()  # nobody may still be reading what is swept up now
        if self.world.is_main:
            for leftover in (self.path / "state").glob(".*"):
                shutil.rmtree(leftover, ignore_errors=True)
            kept = [line for line in read_metrics(self.path) if states and line["step"] <= position.step]
            atomic_write(self.path / METRICS_FILE, "".join(json.dumps(line) + "\n" for line in kept).encode())
            self._open_tensorboard(position.step)
        return position

    def load_best(self, model: nn.Module) -> int:
        """Load the weights of the best state.

        Returns:
            Its step.
        """
        self.finish_writing()
        state = self._read_state(self.states("best")[-1])
        model.load_state_dict(state["model"])
        return int(state["position"]["step"])

    def _read_state(self, directory: Path) -> dict[str, Any]:
        path = directory / STATE_FILE
        try:
            state: dict[str, Any] = torch.load(path, map_location=self.world.device, weights_only=True)
        except Exception as error:  # a damaged file raises errors of many kinds
            reason = " ".join(str(error).split())[:200]
            raise ValueError(
                f"cannot read state `{path}`: {reason}; remove `{directory}` to go on from the one before"
            ) from error
        return state

    def log(self, values: Mapping[str, Any]) -> None:
        """Append a line to the metrics."""
        if self.world.is_main:
            with open(self.path / METRICS_FILE, "a", encoding="utf-8") as file:
                file.write(json.dumps(values) + "\n")
            for name, value in values.items():
                if isinstance(value, int | float) and name != "step":
                    group = "eval" if name.startswith("eval_") else "train"
                    self._tensorboard.add_scalar(f"{group}/{name.removeprefix('eval_')}", value, values["step"])

    def _open_tensorboard(self, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # here, as it takes a while to import

        directory = self.path / TENSORBOARD_DIR
        if step == 0:
            shutil.rmtree(directory, ignore_errors=True)
        self._tensorboard = SummaryWriter(str(directory), purge_step=step + 1)

    def close(self) -> None:
        """Finish writing."""
        self.finish_writing()
        if self._tensorboard is not None:
            self._tensorboard.close()

    def drop_states(self) -> None:
        """Remove the resumable states of a finished run."""
        if self.world.is_main:
            shutil.rmtree(self.path / "state", ignore_errors=True)


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics; a last line that was cut short by a kill is left out."""
    path = run / METRICS_FILE
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    lines = text[: text.rfind("\n") + 1].splitlines()
    return [_json_object(line, f"`{path}`, line {number}") for number, line in enumerate(lines, start=1)]


def _json_object(text: str, place: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{place}: broken JSON ({error}); mend it, or choose another --run-dir") from error
    if not isinstance(values, dict):
        raise ValueError(f"{place}: expected a JSON object; mend it, or choose another --run-dir")
    return values


def _copy_to_cpu(value: Any) -> Any:
    """A copy of nested state that later steps do not change."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _copy_to_cpu(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copy_to_cpu(item) for item in value)
    return value
