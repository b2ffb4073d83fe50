"""`Served`: a model as a server knows it, whatever it answers; `ServedApi`: without an engine."""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import attrs
import jax

from axcore.errors import AxcoreError
from axcore.ops import KernelPolicy, use_policy
from axcore.serving.api_error import ApiError
from axcore.serving.config import Limits
from axcore.serving.endpoint import AnyEndpoint, DeviceQueue
from axcore.serving.request_body import Bodies
from axcore.serving.worker_pool import RequestWork


@attrs.define(kw_only=True)
class Served(ABC):
    """A model that answers requests.

    Attributes:
        name: What requests call it.
        aliases: What they may call it, too.
        limits: What one request may ask.
        step: The checkpoint that answers come from; None where it has none.
        endpoints: What is answered by one call of the model.
        defaults: Fields of requests for text, for those that leave them out.
        policy: By which endpoints' ops choose their kernels; None chooses by the hardware.
        created: When the server began, in seconds of Unix time.
        is_draining: Whether requests are refused because the server ends.
        num_active_requests: Requests that are being answered.
        bodies: Long bodies that arrive.
        queue: Where endpoints wait for the device.
        work: Where what requests need is computed.
    """

    name: str
    aliases: tuple[str, ...] = ()
    limits: Limits = Limits()  # noqa: RUF009 - a frozen value
    step: int | None = None
    endpoints: tuple[AnyEndpoint, ...] = ()
    defaults: Mapping[str, Any] = attrs.field(factory=dict)
    policy: KernelPolicy | None = None
    created: int = attrs.field(factory=lambda: int(time.time()))
    is_draining: bool = False
    num_active_requests: int = 0
    bodies: Bodies = attrs.field(init=False)
    queue: DeviceQueue = attrs.field(init=False)
    work: RequestWork = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.bodies = Bodies(self.limits)
        self.queue = DeviceQueue(self.weights, self.policy)
        self.work = self._request_work()

    @property
    def model_names(self) -> tuple[str, ...]:
        """What requests may name as their model."""
        return (self.name, *self.aliases)

    @property
    @abstractmethod
    def error(self) -> AxcoreError | None:
        """Why nothing is answered any more."""

    @abstractmethod
    def weights(self) -> Any:
        """Return the state that endpoints compute with, all of one version."""

    @abstractmethod
    def replace_weights(self, state: Any, step: int) -> None:
        """Take over the state of another step."""

    @abstractmethod
    def described(self) -> Mapping[str, Any]:
        """Return what `/stats` shows of it."""

    @abstractmethod
    def _request_work(self) -> RequestWork: ...

    def check_name(self, name: str | None) -> None:
        """Check the name that a request calls its model.

        Raises:
            ApiError: Nothing here is called so.
        """
        if name is not None and name not in self.model_names:
            known = ", ".join(map(repr, self.model_names))
            message = f"There is no model {name!r:.80}; this server has {known}."
            raise ApiError(404, message, param="model", code="model_not_found")

    def close(self) -> None:
        """End what is computed for requests."""
        self.queue.close()
        # Last: worker processes may still render for requests that finish.
        self.work.close()


@attrs.define(kw_only=True)
class ServedApi(Served):
    """A model that answers by endpoints alone.

    Attributes:
        state: Of the model.
    """

    state: Any

    @property
    def error(self) -> AxcoreError | None:
        """None: a call that fails ends its own requests alone."""
        return None

    def warm_up(self) -> None:
        """Compile the programs of all endpoints."""
        with nullcontext() if self.policy is None else use_policy(self.policy):
            for one in self.endpoints:
                one.warm_up(self.state)

    def weights(self) -> Any:
        """Return the state."""
        return self.state

    def replace_weights(self, state: Any, step: int) -> None:
        """Take over the state of another step; calls that run end with the old one."""
        self.state, self.step = jax.device_put(state), step

    def described(self) -> Mapping[str, Any]:
        """Return the calls, and the requests that wait for one."""
        return {"num_calls": self.queue.num_calls, "num_waiting": self.queue.num_waiting}

    def _request_work(self) -> RequestWork:
        return RequestWork(None, self.limits, max_bytes=self.limits.max_body_bytes)
