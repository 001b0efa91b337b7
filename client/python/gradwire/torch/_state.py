"""A trainer's place in a session, and the hook that DistributedDataParallel calls with it."""

import datetime
import logging
import os
import threading
import weakref
from multiprocessing import util

import torch
import torch.distributed as dist

from gradwire import _native
from gradwire._errors import Error, InvalidArgument
from gradwire.torch import (
    _arguments,
    _checkpoint,
    _devices,
    _future,
    _job,
    _names,
    _options,
    _reductions,
    _sharing,
    _staging,
)
from gradwire.torch._heal import MembershipChange

_TAKE_SECONDS = 3600.0

_logger = logging.getLogger("gradwire")

_states: "weakref.WeakSet[SessionState]" = weakref.WeakSet()


class SessionState(_reductions.Reductions):
    """One model's place in a session.

    It starts no thread and opens no connection before the first hook call. All arguments except
    `process_group` are keyword-only; arguments that are None come from the environment (see the
    README). Thread-safe. A state cannot be used after fork; an unpickled copy joins as a new
    member.
    """

    def __init__(
        self,
        process_group: object = None,
        *,
        address: str | None = None,
        session: str | None = None,
        tls_ca: str | os.PathLike[str] | None = None,
        tls_cert: str | os.PathLike[str] | None = None,
        tls_key: str | os.PathLike[str] | None = None,
        token_file: str | os.PathLike[str] | None = None,
        comm_hook: object = "no",
        comm_wrapper: object = "no",
        comm_state_option: dict[str, object] | None = None,
        model: torch.nn.Module | None = None,
        device: torch.device | str | None = None,
        node_group: str | None = None,
        keep_gradients: bool = False,
        check_parameters_every: int | None = None,
        on_parameter_drift: str = "warn",
        rank: int | None = None,
        world_size: int | None = None,
        timeout: datetime.timedelta = datetime.timedelta(minutes=30),
        join_timeout: datetime.timedelta = datetime.timedelta(minutes=5),
        connect_timeout: datetime.timedelta = datetime.timedelta(seconds=10),
    ) -> None:
        _arguments.check_group(process_group)
        _arguments.check_address(address)
        _arguments.check_session(session)
        _arguments.check_model(model)
        _arguments.check_node_group(node_group)
        _arguments.check_flag("keep_gradients", keep_gradients)
        _arguments.check_drift(check_parameters_every, on_parameter_drift)
        _arguments.check_members(rank, world_size)
        _arguments.check_timeout("timeout", timeout)
        _arguments.check_timeout("join_timeout", join_timeout)
        _arguments.check_timeout("connect_timeout", connect_timeout)
        self._settings = {
            "address": address,
            "session": session,
            "tls_ca": _arguments.path("tls_ca", tls_ca),
            "tls_cert": _arguments.path("tls_cert", tls_cert),
            "tls_key": _arguments.path("tls_key", tls_key),
            "token_file": _arguments.path("token_file", token_file),
            "comm_hook": _arguments.hook_name("comm_hook", comm_hook),
            "comm_wrapper": _arguments.hook_name("comm_wrapper", comm_wrapper),
            "comm_state_option": _arguments.options(comm_state_option),
            "device": _arguments.device_name(device),
            "node_group": node_group or "",
            "keep_gradients": keep_gradients,
            "check_parameters_every": check_parameters_every,
            "on_parameter_drift": on_parameter_drift,
            "rank": rank,
            "world_size": world_size,
            "timeout": timeout,
            "join_timeout": join_timeout,
            "connect_timeout": connect_timeout,
        }
        _native.check_hook(
            self._settings["comm_hook"],
            self._settings["comm_wrapper"],
            self._settings["comm_state_option"],
        )
        self._group = process_group
        self._model = model
        self._loaded: dict[str, object] | None = None
        self._reset()
        _states.add(self)

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._session = None
        self._thread = None
        self._sharing: _sharing.Sharing | None = None
        self._closed = False
        self._dead: str | None = None
        self._names: list[tuple[str, torch.nn.Parameter]] = []
        self._positions: dict[int, int] = {}
        self._dtypes: list[torch.dtype] = []
        self._on_gpu = False
        self._in_step: set[int] = set()
        self._order: list[list[int]] = []  # DistributedDataParallel's buckets of this step
        self._draw_plan: list[list[int]] | None = None  # what the session was told last
        self._has_ended_step = False
        self._pending: dict[int, _reductions.Pending] = {}
        self._ending: set[int] = set()  # calls that end a step
        self._latest: _staging.Stage | None = None
        self._last: list[_reductions.Pending] = []  # done, but for the verdict
        self._reductions: list[_future.Reduction] = []  # of the backward() under way
        self._next_id = 1
        self.attachments: list[object] = []  # what attach_ made, which lives as long as the session
        self.layouts: dict[tuple, object] = {}  # reduce_grads_' buckets, by their parameters
        self.should_step = True
        self.last_error: BaseException | None = None

    # ---- Connection

    def connect(self, parameters: list[torch.nn.Parameter] | None = None) -> None:
        """Joins the session and waits for all members. Without it, the first reduction joins."""
        with self._lock:
            self._check_alive()
            if self._session is not None:
                return
            if self._model is not None:
                self._names = _names.named(self._model)
            elif parameters is not None:
                self._names = _names.of_ddp_that_owns(parameters)
            else:
                raise InvalidArgument(
                    "this state has no model yet; pass SessionState(model=model)", "GW801"
                )
            self._join(None)

    def attach_model(self, model: torch.nn.Module) -> None:
        """Joins with this model, unless the state already has one."""
        with self._lock:
            if self._session is None and self._model is None:
                self._model = model
            self.connect()

    def attach_parameters(self, parameters: list[torch.nn.Parameter]) -> None:
        """Joins with these parameters, named by number, unless the state already has a model."""
        with self._lock:
            if self._session is None and self._model is None:
                self._names = [(str(i), parameter) for i, parameter in enumerate(parameters)]
                self._check_alive()
                self._join(None)
            self.connect()
            self.positions(parameters)

    def positions(self, parameters: list[torch.nn.Parameter]) -> list[int]:
        """Returns the positions of these parameters in the session's model."""
        found = []
        for parameter in parameters:
            position = self._positions.get(id(parameter))
            if position is None:
                raise InvalidArgument(
                    f"a parameter of shape {tuple(parameter.shape)} is not among the"
                    f" {len(self._names)} with which this session began",
                    "GW310",
                )
            found.append(position)
        return found

    def check_dense(self, gradient: torch.Tensor, parameters: list[torch.nn.Parameter]) -> None:
        """Raises if the gradient is sparse, and names its parameter. Call connect() first."""
        if gradient.layout is torch.strided:
            return
        names = [f'"{self._names[i][0]}"' for i in self.positions(parameters)]
        shapes = [str(tuple(parameter.shape)) for parameter in parameters]
        raise InvalidArgument(
            f"the gradient of parameter {', '.join(names)} of shape {', '.join(shapes)} is sparse"
            f" ({gradient.layout}); allowed are dense gradients: build its Embedding or EmbeddingBag"
            " with sparse=False",
            "GW803",
        )

    def allocate(
        self, numel: int, like: torch.Tensor, positions: list[int]
    ) -> "tuple[torch.Tensor, _sharing.Handle | None]":
        """As Sharing.allocate. Call connect() first."""
        with self._lock:
            self._check_alive()
            return self._sharing.allocate(numel, like, positions)

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise Error(self._dead, "GW316")
        if self._closed:
            raise InvalidArgument("this state is closed", "GW316")

    def _join(self, dtype: torch.dtype | None) -> None:
        settings = self._settings
        world = _options.World(self._group, settings["rank"], settings["world_size"])
        device = _devices.of_session(
            settings["device"], settings["comm_hook"], [parameter for _, parameter in self._names]
        )
        access = self._access(world, device)
        name = _options.session_name(settings["session"], world)
        self._dtypes = [dtype or parameter.dtype for _, parameter in self._names]
        for (parameter, _), kind in zip(self._names, self._dtypes):
            if kind not in _reductions.DTYPES:
                allowed = ", ".join(_reductions.DTYPES.values())
                raise InvalidArgument(f"parameter {parameter} is {kind}; allowed are {allowed}", "GW404")
        manifest = [
            (parameter_name, list(parameter.shape), _reductions.DTYPES[kind])
            for (parameter_name, parameter), kind in zip(self._names, self._dtypes)
        ]
        self._on_gpu = device != "cpu"
        self._session = _devices.explained(
            _native.join,
            access.address,
            name,
            world.rank,
            world.size,
            manifest,
            settings["comm_hook"],
            settings["comm_wrapper"],
            settings["comm_state_option"],
            tls_ca=access.tls_ca,
            tls_cert=access.tls_cert,
            tls_key=access.tls_key,
            token_file=access.token_file,
            device=device,
            node_group=settings["node_group"],
            keep_gradients=settings["keep_gradients"],
            connect_timeout=settings["connect_timeout"].total_seconds(),
            join_timeout=settings["join_timeout"].total_seconds(),
            step_timeout=settings["timeout"].total_seconds(),
            on_wait=lambda line: _logger.warning("%s", line),
        )
        self._sharing = _sharing.Sharing(self._session)
        self._positions = {id(parameter): i for i, (_, parameter) in enumerate(self._names)}
        self._thread = threading.Thread(
            target=_complete, args=(weakref.ref(self), self._session), name="gradwire", daemon=True
        )
        self._thread.start()
        # Before the embedded daemon ends; not atexit, which a process of multiprocessing does not run.
        self._at_exit = util.Finalize(None, self.close, exitpriority=20)
        if self._loaded is not None:
            self._apply(self._loaded)
            self._loaded = None

    def _access(self, world: _options.World, device: str) -> _job.Access:
        """The address that is given, or daemons that the job starts."""
        settings = self._settings
        address = settings["address"] or os.environ.get("GRADWIRE_ADDRESS")
        if address:
            files = [settings[name] for name in ("tls_ca", "tls_cert", "tls_key", "token_file")]
            return _job.Access(address, *files)
        hook = [settings[name] for name in ("comm_hook", "comm_wrapper", "comm_state_option")]
        # Members of a node group go through one daemon.
        grouped = (settings["node_group"] or os.environ.get("GRADWIRE_NODE_GROUP") or "off") != "off"
        several = not grouped and _native.takes_several_daemons(*hook, device)
        return _options.daemons(world, several, settings["join_timeout"].total_seconds(), self)

    # ---- State

    @property
    def rank(self) -> int:
        return self._need().rank

    @property
    def world_size(self) -> int:
        return self._need().world_size

    @property
    def members(self) -> list[int]:
        """Ranks that are in the session: all, unless it goes on without lost members (on_member_loss:
        shrink). Gradients are means over these."""
        return self._need().members

    @property
    def step(self) -> int:
        """The number of steps that this session has ended."""
        return self._need().step

    @property
    def skip_reason(self) -> str:
        """Why the last step was skipped, in a sentence; "" if it was applied, or nobody here knows."""
        return self._need().skip_reason

    @property
    def parameter_drift(self) -> str:
        """Whose parameters differ from the others', in a sentence; "" if nobody's, or if the last step
        was not one of those that check_parameters_every names."""
        return self._need().parameter_drift

    @property
    def membership_change(self) -> MembershipChange | None:
        """What the last step says of the membership: who is new in the place of lost members (also if it
        is this process), and who is in the session from now on. None: nothing has changed.

        The daemon must have on_member_loss: wait, or shrink. If there are newcomers, that step was
        skipped for all; before the next one every member calls heal_, without which the next reduction
        is an error.
        """
        change = self._need().membership_change
        return None if change is None else MembershipChange(*change)

    def _need(self):
        with self._lock:
            if self._session is None:
                self.connect()
            return self._session

    def barrier(self) -> None:
        self._need().barrier()

    def set_loss_scale(self, scale: float) -> None:
        """Announces that gradients are multiplied by `scale` from the next step on. Residuals are
        rescaled to match."""
        self._need().set_loss_scale(scale)

    def metrics(self) -> dict[str, object]:
        """Returns totals since the session began; empty before it begins.

        "buckets" has a dict for each bucket of the last step: whether it was reduced in place, where
        torch has its gradients, or why it was copied.
        """
        session, sharing = self._session, self._sharing
        if session is None or sharing is None:
            return {}
        names = [name for name, _ in self._names]
        return {**session.metrics(), "buckets": sharing.paths(session.report(), names)}

    def report(self) -> list[dict[str, object]]:
        """Returns a dict for each bucket of the last step: bytes, time by stage, residual."""
        session = self._session
        return [] if session is None else session.report()

    def state_dict(self) -> dict[str, object]:
        """Returns this rank's part of a checkpoint: tensors, integers and strings.

        Call it between two steps; no other rank has to take part. Every rank saves its own part,
        because every rank has its own residuals.
        """
        with self._lock:
            self._check_alive()
            session = self._session
            if session is None:
                if self._loaded is not None:
                    return self._loaded
                empty = _checkpoint.to_tensor(b"")
                return {"version": 1, "step": 0, "coordinator": empty, "member": empty.clone()}
            return {
                "version": 1,
                "step": session.step,
                "coordinator": _checkpoint.to_tensor(_checkpoint.coordinator_state(session)),
                "member": _checkpoint.to_tensor(session.state_dict()),
            }

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Restores a checkpoint. All ranks call it, between two steps or before the first.

        If one rank's part is refused, the session ends for all of them: the others would otherwise
        wait for that rank, or train on with only some of the ranks restored.
        """
        _arguments.check_state(state)
        with self._lock:
            self._check_alive()
            if self._session is None:
                self._loaded = dict(state)
            else:
                self._apply(state)

    def _apply(self, state: dict[str, object]) -> None:
        session = self._session
        change = self.membership_change
        if change is not None and session.rank in change.newcomers:
            _logger.warning("a checkpoint is not loaded: this process has come for a lost member, and heal_ gives it all")
            return
        coordinator = _checkpoint.to_bytes(state["coordinator"])
        member = _checkpoint.to_bytes(state["member"])
        try:
            if coordinator and session.rank == 0:
                session.import_state(coordinator)
                self._draw_plan = None  # the state has its own
            if member:
                session.load_state_dict(member)
            session.barrier()
        except Exception as error:
            self.close()
            self._dead = f"this session ended because a checkpoint was not loaded: {error}"
            raise

    # ---- End

    def leave(self, timeout: datetime.timedelta = datetime.timedelta(seconds=10)) -> int | None:
        """Leaves before the others, between two steps, and closes the state. Residuals (PowerSGD's) and
        late gradients go to another rank first, which is returned. None: there were none, or nobody has
        taken them within `timeout`, which is logged. The daemon must have on_member_loss: shrink, or
        wait."""
        rank = None
        if (session := self._session) is not None:
            rank, reason = session.hand_over_and_leave(timeout.total_seconds())
            if reason:
                _logger.warning("rank %d leaves, and nobody is known to have its residuals or late gradients: %s", session.rank, reason)
        self.close()
        return rank

    def close(self) -> None:
        """Leaves the session. Idempotent. The interpreter's exit calls it too."""
        with self._lock:
            session, thread, sharing = self._session, self._thread, self._sharing
            self._session = self._thread = self._sharing = None
            self._closed = True
            self.layouts.clear()
        if session is None:
            return
        self._at_exit.cancel()
        try:
            session.leave()
        except Error:
            pass  # the session has failed: there is nothing left to leave
        session.close()
        _options.release(self)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=10)
        if sharing is not None:  # the SDK no longer uses the memory
            sharing.close()

    def __enter__(self) -> "SessionState":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, object]:
        return {"settings": self._settings, "loaded": self._loaded}

    def __setstate__(self, state: dict[str, object]) -> None:
        self._settings = state["settings"]
        self._loaded = state["loaded"]
        self._group = None
        self._model = None
        self._reset()
        _states.add(self)

    def _after_fork(self) -> None:
        session = self._session
        if session is None:
            self._lock = threading.RLock()
            return
        session.abandon()
        self._reset()
        self._dead = (
            "this process is a fork of the one that joined the session, and has no part in it;"
            " make a SessionState of its own"
        )


def _complete(reference: "weakref.ref[SessionState]", session) -> None:
    while True:
        outcomes = session.take(_TAKE_SECONDS)
        if not outcomes and session.closed:
            return
        state = reference()
        if state is None:
            return
        for outcome in outcomes:
            state._on_outcome(*outcome)
        del state


def _after_fork() -> None:
    _options.after_fork()
    for state in list(_states):
        state._after_fork()


os.register_at_fork(after_in_child=_after_fork)


def aggregate_hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The hook: ddp.register_comm_hook(state, aggregate_hook)."""
    return state.reduce_bucket(bucket)
