"""What is looked for after every step: a signal, the hour to save."""

from __future__ import annotations

import time

from datapipe.training.options import TrainOptions
from datapipe.training.ranks import Agreement, Peers
from datapipe.training.signals import Heard
from datapipe.training.state import TrainingState


class InterruptedRun(Exception):  # noqa: N818  (nothing went wrong)
    """All ranks have agreed to stop, and the run is saved."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


class Vigil:
    """Saves when it is time to, and ends the run when a rank was told to stop. All ranks make the same calls."""

    def __init__(self, heard: Heard, options: TrainOptions, peers: Peers) -> None:
        self._heard, self._options, self._peers = heard, options, peers
        self._agreement = Agreement(peers)
        self._signal = 0
        self._saved_s = time.monotonic()

    def after_step(self, state: TrainingState) -> None:
        """Raises InterruptedRun, with the state saved."""
        every_s, every_steps = self._options.save_every_minutes, self._options.save_every_steps
        is_hour = self._peers.leads and every_s is not None and time.monotonic() - self._saved_s > 60 * every_s
        signal, save = self._agreement(self._heard.number, is_hour)
        if signal:
            self.end(state, signal)
        if save or (every_steps is not None and state.place.step % every_steps == 0):
            self.save(state)

    def save(self, state: TrainingState) -> None:
        state.save()
        self._saved_s = time.monotonic()

    def asks_to_stop(self) -> bool:
        """Between the batches of a validation; `end` is then called."""
        self._signal = self._agreement(self._heard.number, False)[0]
        return self._signal != 0

    def end(self, state: TrainingState, signal: int = 0) -> None:
        """Raises InterruptedRun, with the state saved by the time that any rank gets there."""
        self._agreement.settle()
        state.save()
        self._peers.gather(None)  # a launcher that sees one rank end kills the others, and rank 0 may still be writing
        raise InterruptedRun(signal or self._signal)

    def close(self) -> None:
        """Let no message be under way when the ranks part."""
        self._agreement.settle()
