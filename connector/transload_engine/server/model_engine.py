"""One engine whose tokens a model computes: one process, one rank. Knows no torch."""

import secrets
import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from itertools import chain
from typing import Any, Final

import zmq

from transload_engine.core.events import EventForm
from transload_engine.core.handoff import Origin
from transload_engine.core.model_core import ModelCore
from transload_engine.core.runner import Runner
from transload_engine.server.api import Api
from transload_engine.server.engine import Engine, EngineSpec, Identity
from transload_engine.server.kv_params import check_params, is_load, num_readers
from transload_engine.server.kv_transfer import Connect
from transload_engine.server.metrics import exposition, serving_series, transfer_series
from transload_engine.server.model_rank import ModelRank
from transload_engine.server.sampling import ModelDefaults, read_sampling, refuse_unserved
from transload_engine.server.tokens import Tokenizer
from transload_engine.server.wants import Body, Limits, Want, read_want

LEASE_BYTES: Final = 16
"""Random, in a lease's name: nobody guesses it."""

_VERSION: Final = version("transload")
TRANSLOAD: Final = Identity("transload", _VERSION, f"transload-{_VERSION}")


class ModelEngine(Engine[ModelRank]):
    """See the module. `start` once, then `stop`.

    Args:
        spec: What to be; what only simulations have is at its default.
        runner: Computes its tokens.
        connect: The way to other engines' blocks, and for theirs to these.
        vocab_size: Ids that the model can read and choose are below this.
        defaults: Of the model's generation.
        context: Of ZMQ; must outlive the engine.
        tokenizer: Of the model.

    Raises:
        ValueError: The spec asks for what is only simulated.
    """

    def __init__(
        self,
        spec: EngineSpec,
        runner: Runner,
        connect: Connect,
        vocab_size: int,
        defaults: ModelDefaults,
        context: zmq.Context[zmq.Socket[bytes]],
        tokenizer: Tokenizer,
    ) -> None:
        super().__init__(spec, TRANSLOAD, context, tokenizer, Api(self))
        self._runner = runner
        self._connect = connect
        self._vocab_size = vocab_size
        self._defaults = defaults
        # Where others read is known, and said, once the rank has connected.
        origin = Origin(str(uuid.uuid4()), "", 0)
        draw_lease = partial(secrets.token_hex, LEASE_BYTES)
        self._core = ModelCore(spec.core, origin, tokenizer.eos, draw_lease)

    @property
    def refuses(self) -> bool:
        """See `Engine`."""
        return any(rank.is_dead for rank in self.ranks)

    @property
    def cores(self) -> Sequence[ModelCore]:
        """See `Engine`."""
        return [rank.core for rank in self.ranks]

    def metrics(self) -> bytes:
        """See `Engine`."""
        series = chain(serving_series(self._core), transfer_series(self._core))
        return exposition([series], self.spec.model)

    def read(self, body: Body, *, is_chat: bool) -> Want:
        """See `Engine`.

        Raises:
            Refusal: What vLLM would refuse, or what is not served here.
        """
        core = self.spec.core
        limits = Limits(
            model=self.spec.model,
            max_model_tokens=core.max_model_tokens,
            default_max_tokens=self._defaults.max_tokens or core.max_model_tokens,
            vocab_size=self._vocab_size,
        )
        want = read_want(body, self.tokenizer, limits, is_chat=is_chat)
        refuse_unserved(body, is_chat=is_chat)
        check_params(want)
        eos, size = self.tokenizer.eos, self._vocab_size
        sampling = read_sampling(body, self._defaults, eos, size, is_chat=is_chat)
        ends = frozenset() if want.ignores_eos else self._defaults.eos_ids - {eos}
        return replace(
            want,
            sampling=sampling,
            stop_token_ids=want.stop_token_ids | ends,
            num_readers=num_readers(want.handoff),
        )

    def give_up(self, params: dict[str, Any]) -> None:
        """See `Engine`."""
        if is_load(params):
            super().give_up(params)

    async def start(self) -> None:
        """Be reachable.

        Raises:
            OSError: An address cannot be had.
        """
        form = self.spec.ports.form if self.spec.ports else EventForm.MAP
        rank = ModelRank(self._core, self._runner, self._connect, self._publisher(0), form)
        self.ranks.append(rank)
        rank.start()
        port = await self._server.start(self.spec.host, self.spec.port)
        self.spec = replace(self.spec, port=port)

    async def stop(self) -> None:
        """Be gone, once the step under way is computed."""
        await self._server.stop()
        ranks, self.ranks = self.ranks, []
        for rank in ranks:
            await rank.close()
