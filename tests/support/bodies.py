"""The smallest body of each endpoint that two engines can share."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from transload_router.core.bodies.endpoints import (
    CHAT,
    COMPLETIONS,
    GENERATE,
    MESSAGES,
    RESPONSES,
    Endpoint,
)

Json = dict[str, Any]

ALL = (CHAT, COMPLETIONS, RESPONSES, MESSAGES, GENERATE)

BASE: Mapping[str, Json] = {
    "chat": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    "completions": {"model": "m", "prompt": "hi"},
    "responses": {"model": "m", "input": "hi"},
    "messages": {"model": "m", "messages": [], "max_tokens": 500},
    "generate": {"model": "m", "token_ids": [1, 2], "sampling_params": {}},
}


def name_of(endpoint: Endpoint) -> str:
    """For tests' ids."""
    return endpoint.name


each_endpoint = pytest.mark.parametrize("endpoint", ALL, ids=name_of)


def with_sampling(endpoint: Endpoint, fields: Json) -> Json:
    """A body with further fields, wherever the endpoint has those of sampling."""
    body = json.loads(json.dumps(BASE[endpoint.name]))
    (body["sampling_params"] if endpoint is GENERATE else body).update(fields)
    return dict(body)
