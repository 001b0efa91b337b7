"""Reductions under way: begins them in the step's order, and ends them as outcomes arrive."""

import logging

import torch
import torch.distributed as dist

from gradwire._codes import coded
from gradwire._errors import Error, from_status
from gradwire.torch import _drift, _future, _names, _sharing, _staging

_ABORTED = 10

_logger = logging.getLogger("gradwire")

DTYPES = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
}


class Pending:
    """One reduction in progress."""

    def __init__(self, finish, ends_step: bool) -> None:
        self.finish = finish  # called with None or an exception, on the completion thread
        self.ends_step = ends_step


class Reductions:
    """The part of SessionState that reduces buckets and counts steps.

    SessionState derives from it and has the connection, the lock and all attributes, which
    SessionState._reset makes.
    """

    # ---- Reduction

    def reduce_bucket(self, bucket: dist.GradBucket) -> torch.futures.Future:
        """Implements aggregate_hook. Never raises; a failure is in the future."""
        buffer = bucket.buffer()
        if _future.call_after_ddp(self._raise_failure):
            future = reduction = _future.Reduction(buffer.device)
            self._reductions.append(reduction)
        else:
            reduction = _future.DetachedReduction(buffer.device)
            future = reduction.future
        try:
            parameters = bucket.parameters()
            with self._lock:
                if self._session is None:
                    self._connect_for(buffer, parameters)
                self._start(buffer, parameters, bucket.is_last(), reduction)
        except Exception as error:
            self.last_error = error
            reduction.end(error, buffer)
        return future

    def _raise_failure(self) -> None:
        ended = [reduction for reduction in self._reductions if reduction.done()]
        self._reductions = [one for one in self._reductions if not one.done()]
        for reduction in ended:
            if reduction.error is not None:
                self.on_failure(reduction.error)
        for reduction in ended:
            if not reduction.told:
                reduction.check()

    def on_failure(self, error: BaseException) -> None:
        """A failure is about to be raised, and no thread computes gradients: the daemon may still
        write results of the failed session into memory that it shares."""
        with self._lock:
            if self._sharing is not None and _sharing.ends(error):
                self._sharing.close()

    def _connect_for(self, buffer: torch.Tensor, parameters: list[torch.nn.Parameter]) -> None:
        self._check_alive()
        self._names = (
            _names.of_ddp_that_owns(parameters)
            if self._model is None
            else _names.named(self._model)
        )
        # A wrapper of torch's, fp16_compress_wrapper(aggregate_hook), gives buckets in its own dtype.
        wrapped = any(parameter.dtype != buffer.dtype for parameter in parameters)
        self._join(buffer.dtype if wrapped else None)

    def _start(
        self,
        buffer: torch.Tensor,
        parameters: list[torch.nn.Parameter],
        is_last: bool,
        reduction: "_future.Reduction | _future.DetachedReduction",
    ) -> None:
        self.check_dense(buffer, parameters)
        positions = self.positions(parameters)
        # DistributedDataParallel reads the result's storage from its beginning.
        plain = buffer.storage_offset() == 0 and buffer.is_contiguous()
        target = buffer if plain else buffer.clone(memory_format=torch.contiguous_format)
        self.submit(
            target,
            positions,
            is_last,
            lambda error: reduction.end(error, target),
            in_order=True,
            trains=isinstance(reduction, _future.Reduction),
        )

    def submit(
        self,
        target: torch.Tensor,
        positions: list[int],
        is_last: bool,
        finish,
        in_order: bool = False,
        trains: bool = True,
    ) -> None:
        """Reduces `target`, the gradients of these parameters, in place.

        `finish` is called with None or an exception once that is done; the step's last bucket waits
        for the verdict with it, so that should_step is known when backward() returns. `in_order`:
        DistributedDataParallel's buckets, which come in the same order in each step, whatever their
        gradients' order. `trains`: False for a rank that has run out of inputs and only covers for
        the others in Join: it has no optimizer's step, so its parameters are behind.
        """
        wire = self._dtypes[positions[0]]
        with self._lock:
            self._check_alive()
            if not self._in_step.isdisjoint(positions):
                self._end_step()  # not all parameters took part in the step before
            if not self._in_step:
                self._begin_step(compares=trains)
            self._in_step.update(positions)
            ends = is_last or len(self._in_step) == len(self._names)
            number = self._take_number()
            stage = _staging.Stage(target, wire, self._on_gpu)
            met = None
            if in_order and stage.in_place:
                met = self._sharing.meet(target, positions)
                met.begin()

            def finish_here(error: BaseException | None) -> None:
                if met is not None:
                    with self._lock:
                        met.end()
                stage.finish(error, finish)

            pending = Pending(finish_here, ends)
            self._pending[number] = pending
            session = self._session
            if in_order:
                self._order.append(positions)
            # Before the step's last bucket, so that it is there before the next step can begin.
            plan = self._new_draw_plan() if ends else None

            def send(memory: torch.Tensor, stream: int = 0) -> None:
                if plan is not None:
                    session.set_draw_plan(plan)
                session.all_reduce(
                    number, memory.data_ptr(), memory.numel(), DTYPES[wire], positions, stream
                )

            stage.begin(send)
            self._latest = stage
            if ends:
                self._end_step()

    def _begin_step(self, compares: bool) -> None:
        every = self._settings["check_parameters_every"]
        # A step whose end is not known yet may still be dropped, and then has another number.
        if not compares or every is None or self._ending or self._session.step % every:
            return
        try:
            self._session.check_parameters(_drift.digest([parameter for _, parameter in self._names]))
        except Error:
            pass  # the session is over, and the reduction says why

    def _take_drift(self) -> str:
        """The step is over: whose parameters differ; "" if it was not compared, or nobody's do.

        A rank that sent nothing asks, too: otherwise it would go on where others fail.
        """
        session = self._session
        if session is None:
            return ""
        try:
            return session.parameter_drift
        except Error:  # it was closed meanwhile
            return ""

    def _new_draw_plan(self) -> list[list[int]] | None:
        """The step's buckets, where the session does not know them yet.

        torch draws PowerSGD's first Q bucket by bucket, in the order of the first compressed step.
        DistributedDataParallel rebuilds its buckets after its first step, and torch compresses in
        the third at the earliest; so the last step without compression has torch's order. The first
        step has not, and a state that was loaded knows better.
        """
        draws = self._settings["comm_hook"] in ("power_sgd", "batched_power_sgd")
        if not draws or not self._order or not self._has_ended_step:
            return None
        if self._session.rank != 0 or self._order == self._draw_plan:
            return None
        self._draw_plan = self._order
        return self._order

    def _take_number(self) -> int:
        self._next_id += 1
        return self._next_id

    def _end_step(self) -> None:
        number = self._take_number()
        self._ending.add(number)
        self._in_step.clear()
        session = self._session
        plan = self._new_draw_plan()
        self._order = []
        self._has_ended_step = True

        def end() -> None:
            if plan is not None:
                session.set_draw_plan(plan)
            session.end_step(number)

        self._latest.after(end)

    # ---- Outcomes, on the completion thread

    def _on_outcome(self, number: int, code: int, message: str, applied: bool) -> None:
        error = None if code == 0 else from_status(code, message)
        finished = []
        drift = ""
        with self._lock:
            if error is not None:
                self.last_error = error
            pending = self._pending.pop(number, None)
            if pending is not None:
                if pending.ends_step and error is None:
                    self._last.append(pending)
                else:
                    finished.append(pending)
            elif number in self._ending:
                self._ending.discard(number)
                self.should_step = applied
                finished, self._last = self._last, []
                drift = self._take_drift() if error is None else ""
                if drift and self._settings["on_parameter_drift"] == "fail":
                    error = self.last_error = from_status(_ABORTED, coded("GW321", drift))
                    self._dead = f"this session has ended: {drift}"
        if drift and error is None:
            _logger.warning("%s", drift)
        for one in finished:
            one.finish(error)
