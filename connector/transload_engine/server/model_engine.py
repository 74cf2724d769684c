"""One engine whose tokens a model computes: one process, one rank. Knows no torch."""

import uuid
from dataclasses import replace
from importlib.metadata import version
from typing import Final

import zmq

from transload_engine.core.events import EventForm
from transload_engine.core.handoff import Origin
from transload_engine.core.model_core import ModelCore
from transload_engine.core.runner import Runner
from transload_engine.server.api import Api
from transload_engine.server.engine import Engine, EngineSpec, Identity
from transload_engine.server.model_rank import ModelRank
from transload_engine.server.sampling import ModelDefaults, read_sampling, refuse_unserved
from transload_engine.server.tokens import Tokenizer
from transload_engine.server.wants import Body, Limits, Want, read_want

_VERSION: Final = version("transload")
TRANSLOAD: Final = Identity("transload", _VERSION, f"transload-{_VERSION}")


class ModelEngine(Engine[ModelRank]):
    """See the module. `start` once, then `stop`.

    Args:
        spec: What to be; what only simulations have is at its default.
        runner: Computes its tokens.
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
        vocab_size: int,
        defaults: ModelDefaults,
        context: zmq.Context[zmq.Socket[bytes]],
        tokenizer: Tokenizer,
    ) -> None:
        super().__init__(spec, TRANSLOAD, context, tokenizer, Api(self))
        self._runner = runner
        self._vocab_size = vocab_size
        self._defaults = defaults
        origin = Origin(str(uuid.uuid4()), spec.host, 0)
        self._core = ModelCore(spec.core, origin, tokenizer.eos)

    @property
    def refuses(self) -> bool:
        """See `Engine`."""
        return any(rank.is_dead for rank in self.ranks)

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
        eos, size = self.tokenizer.eos, self._vocab_size
        sampling = read_sampling(body, self._defaults, eos, size, is_chat=is_chat)
        ends = frozenset() if want.ignores_eos else self._defaults.eos_ids - {eos}
        return replace(want, sampling=sampling, stop_token_ids=want.stop_token_ids | ends)

    async def start(self) -> None:
        """Be reachable."""
        form = self.spec.ports.form if self.spec.ports else EventForm.MAP
        rank = ModelRank(self._core, self._runner, self._publisher(0), form)
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
