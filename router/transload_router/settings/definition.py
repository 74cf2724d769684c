"""The operator's settings: one definition behind flags, environment and file.

Precedence: flags, then `TRANSLOAD_*`, then the file named by `--config` or `TRANSLOAD_CONFIG`,
then the defaults here. The file is YAML with the same names in snake_case.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic import model_validator as validate_model
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    SettingsConfigDict,
)

ENV_PREFIX = "TRANSLOAD_"


def _split(value: Any) -> Any:
    """The environment's form of a list: commas."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def check_engine_url(value: str) -> str:
    """Normalise `host:port` or a URL; refuse what is not an engine's address.

    Returns:
        `http[s]://host:port[/prefix]`, IPv6 in brackets.

    Raises:
        ValueError: Naming what is wrong with it.
    """
    url = value if "://" in value else f"http://{value}"
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ValueError("engine URL: host or port cannot be read") from None
    # First of all checks: the others show the value.
    if parts.username is not None or parts.password is not None:
        raise ValueError("engine URL: credentials belong into the api key settings")
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"engine URL {value!r}: scheme must be http or https")
    if parts.query or parts.fragment:
        raise ValueError(f"engine URL {value!r}: no query or fragment")
    if not parts.hostname:
        raise ValueError(f"engine URL {value!r}: no host")
    try:
        port = parts.port
    except ValueError as error:
        raise ValueError(f"engine URL {value!r}: {error}") from None
    if port is None:
        port = 443 if parts.scheme == "https" else 80
    if port == 0:
        raise ValueError(f"engine URL {value!r}: port 0")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port}{parts.path.rstrip('/')}"


_ENDPOINT = r"(?:tcp://[^;/\s]+:[1-9]\d{0,4}|ipc://[^;\s]+)"
_KV_EVENT_ENDPOINT = re.compile(
    r"(?P<role>prefill|decode)-(?P<index>\d{1,4})(?:/(?P<rank>\d{1,3}))?"
    rf"=(?P<endpoint>{_ENDPOINT})(?:;(?P<replay>{_ENDPOINT}))?"
)

EngineUrl = Annotated[str, AfterValidator(check_engine_url)]
StrList = Annotated[list[str], NoDecode, BeforeValidator(_split)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]

# Stands for a folder, where prompts are not to be tokenised.
NO_TOKENIZER = "none"

_MIB = 1 << 20


class Settings(BaseSettings):
    """Everything that an operator can set; see `transload serve --help`."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_ignore_empty=True,
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )

    config: Path | None = Field(None, description="YAML file with these settings.")
    prefill: Annotated[list[EngineUrl], NoDecode, BeforeValidator(_split)] = Field(
        default=[], description="Base URL of a prefill engine; repeatable."
    )
    decode: Annotated[list[EngineUrl], NoDecode, BeforeValidator(_split)] = Field(
        default=[], description="Base URL of a decode engine; repeatable."
    )
    host: str = Field("127.0.0.1", description="Address to listen on; :: for IPv6 and IPv4.")
    port: int = Field(8000, ge=0, le=65_535, description="Port to listen on; 0 takes a free one.")
    model_name: StrList = Field(
        default=[],
        description="Another name for a served model: ALIAS=SERVED, or ALIAS alone for the "
        "only model; repeatable.",
    )
    connect_timeout_s: Seconds = Field(5.0, description="Seconds to connect to an engine.")
    response_header_timeout_s: Seconds = Field(
        1800.0,
        description="Seconds until an engine's response header. A non-stream answer sends it "
        "after the last token, so this bounds whole generations.",
    )
    idle_timeout_s: Seconds = Field(
        300.0, description="Seconds between two chunks of an answer. Streams have no total cap."
    )
    client_stall_timeout_s: Seconds = Field(
        60.0, description="Seconds that a client may leave sent bytes unacknowledged."
    )
    max_body_bytes: int = Field(
        64 * _MIB, ge=1, description="Largest request body in bytes; above, 413."
    )
    max_answer_bytes: int = Field(
        64 * _MIB,
        ge=_MIB,
        description="Largest non-stream answer held in memory, in bytes. Larger ones are relayed "
        "as they come and can no longer be retried.",
    )
    credentials: Literal["pass", "replace", "drop"] = Field(
        "pass",
        description="The client's Authorization and x-api-key: pass on, replace by the pool's "
        "key, or drop.",
    )
    prefill_api_key: SecretStr | None = Field(
        None, description="Bearer key for prefill engines: probes, and requests under replace."
    )
    decode_api_key: SecretStr | None = Field(
        None, description="Bearer key for decode engines: probes, and requests under replace."
    )
    on_missing_handoff: Literal["recompute", "fail"] = Field(
        "recompute", description="When prefill answers without a handoff."
    )
    on_empty_prefill: Literal["local", "fail"] = Field(
        "local", description="When no prefill engine is up: decode reads the prompt, or 503."
    )
    on_prefill_failure: Literal["local", "fail"] = Field(
        "fail", description="When prefill failed and the retry, too: decode reads, or the error."
    )
    health_interval_s: Seconds = Field(5.0, description="Seconds between probes of an engine.")
    handoff_probe: bool = Field(
        True, description="At start-up, send one short prompt through each engine's handoff."
    )
    handoff_probe_timeout_s: Seconds = Field(
        60.0, description="Seconds for that probe; a pair's first transfer was seen to take 20."
    )
    blocked_paths: StrList = Field(
        default=[
            "/abort_requests",
            "/collective_rpc",
            "/fault_tolerance/apply",
            "/finish_weight_update",
            "/get_world_size",
            "/inference/v1/abort_requests",
            "/init_weight_transfer_engine",
            "/is_paused",
            "/is_scaling_elastic_ep",
            "/is_sleeping",
            "/kv_event_sources",
            "/pause",
            "/release_kv_cache_memory",
            "/reset_encoder_cache",
            "/reset_mm_cache",
            "/reset_prefix_cache",
            "/resume",
            "/scale_elastic_ep",
            "/server_info",
            "/shutdown_weight_transfer_engine",
            "/sleep",
            "/start_draft_weight_update",
            "/start_profile",
            "/start_weight_update",
            "/stop_profile",
            "/update_weight_version",
            "/update_weights",
            "/v1/load_lora_adapter",
            "/v1/unload_lora_adapter",
            "/wake_up",
            "/weight_checker",
            "/weight_info",
        ],
        description="Paths of the engines' operators that clients get 403 for; repeatable.",
    )
    policy: Literal["cost", "least-loaded", "round-robin", "prefix", "session", "random"] = Field(
        "cost",
        description="How engines are chosen: predicted cost, fewest reserved tokens, in turn, "
        "longest cached prefix, by session, or by chance.",
    )
    inter_token_target_s: Seconds = Field(
        0.05,
        description="Seconds between two tokens of an answer that prompts read by decode itself "
        "should not exceed, while prefill engines have time for them (policy cost).",
    )
    session_header: str = Field(
        "x-session-id",
        pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$",
        description="Header that names a client's session, for the session policy.",
    )
    kv_events: Literal["auto", "off"] = Field(
        "auto",
        description="Follow the engines' KV events: auto asks each engine where it publishes them.",
    )
    kv_event_endpoint: StrList = Field(
        default=[],
        description="Where an engine publishes its KV events, instead of asking it: "
        "ENGINE[/RANK]=ENDPOINT[;REPLAY_ENDPOINT], such as "
        "prefill-0=tcp://10.0.0.7:5557;tcp://10.0.0.7:5558; repeatable.",
    )
    index_max_blocks: int = Field(
        4_000_000, ge=1_000, description="Blocks that the index of caches remembers at most."
    )
    index_snapshot_from: EngineUrl | None = Field(
        None,
        description="Base URL of another replica of this router, to start with its index.",
    )
    tokenizer: StrList = Field(
        default=[],
        description="Folder or hub name (already in the local cache) of the tokenizer of the only "
        "model, or MODEL=FOLDER; repeatable. By default the one where the engine has its model "
        "from, if that is here, too. Without one, or with none, prompts are matched as text.",
    )
    tokenizer_fallback: Literal["engine", "none"] = Field(
        "engine",
        description="Where the router's tokens are not the engine's: ask the engine's /tokenize, "
        "or go on without tokens.",
    )
    send_token_ids: bool = Field(
        True,
        description="Give engines the token ids that the router or prefill made, so that a prompt "
        "is tokenised once.",
    )
    decision_log_share: float = Field(
        0.0, ge=0.0, le=1.0, description="Share of decisions that are logged with their terms."
    )
    admin_api_key: SecretStr | None = Field(
        None,
        description="Bearer key for /admin; without it, /admin answers only direct connections "
        "from this host.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe log lines to print."
    )

    @validate_model(mode="after")
    def _check_together(self) -> Self:
        if not self.decode:
            raise ValueError("decode: at least one decode engine is needed (--decode URL)")
        both = set(self.prefill) & set(self.decode)
        if both:
            raise ValueError(f"{sorted(both)[0]} is named as prefill and as decode engine")
        for name in ("prefill", "decode"):
            urls = getattr(self, name)
            if len(set(urls)) != len(urls):
                raise ValueError(f"{name}: an engine is named twice")
        self._check_credentials()
        self._check_kv_events()
        tokenizers = self.tokenizers()
        if len(tokenizers) != len(self.tokenizer) or "" in {*tokenizers, *tokenizers.values()}:
            raise ValueError("tokenizer: one folder per model, MODEL=FOLDER")
        if None in tokenizers and len(tokenizers) > 1:
            raise ValueError("tokenizer: with several, each needs its model, MODEL=FOLDER")
        aliases = self.aliases()
        if len(aliases) != len(self.model_name):
            raise ValueError("model_name: an alias is named twice")
        for alias, served in aliases.items():
            if not alias or served == "":
                raise ValueError(f"model_name: {alias}={served or ''} lacks a name")
        return self

    def _check_credentials(self) -> None:
        keys = (self.prefill_api_key, self.decode_api_key)
        for name, key in zip(("prefill_api_key", "decode_api_key"), keys, strict=True):
            if key is not None and not re.fullmatch(r"[!-~]+", key.get_secret_value()):
                raise ValueError(f"{name}: only visible ASCII characters can stand in a header")
        admin = self.admin_api_key
        if admin is not None and not re.fullmatch(r"[!-~]+", admin.get_secret_value()):
            raise ValueError("admin_api_key: only visible ASCII characters can stand in a header")
        if self.credentials == "replace" and self.decode_api_key is None:
            raise ValueError("credentials: replace needs decode_api_key")
        if self.credentials == "replace" and self.prefill and self.prefill_api_key is None:
            raise ValueError("credentials: replace needs prefill_api_key")
        if self.credentials == "drop" and any(key is not None for key in keys):
            raise ValueError("credentials: drop contradicts an api key; use replace")

    def _check_kv_events(self) -> None:
        for item in self.kv_event_endpoint:
            match = _KV_EVENT_ENDPOINT.fullmatch(item)
            if match is None:
                raise ValueError(
                    f"kv_event_endpoint: {item!r} is not ENGINE[/RANK]=ENDPOINT[;REPLAY_ENDPOINT] "
                    "with tcp://HOST:PORT or ipc:// endpoints"
                )
            role, index = match["role"], int(match["index"])
            if index >= len(getattr(self, role)):
                raise ValueError(f"kv_event_endpoint: there is no engine {role}-{index}")
        places = [item.partition("=")[0] for item in self.kv_event_endpoint]
        if len(set(places)) != len(places):
            raise ValueError("kv_event_endpoint: an engine's rank is named twice")

    def event_endpoints(self) -> dict[str, list[tuple[int, str, str | None]]]:
        """Configured event endpoints by engine id: (rank, endpoint, replay endpoint)."""
        found: dict[str, list[tuple[int, str, str | None]]] = {}
        for item in self.kv_event_endpoint:
            match = _KV_EVENT_ENDPOINT.fullmatch(item)
            assert match is not None
            place = (int(match["rank"] or 0), match["endpoint"], match["replay"])
            found.setdefault(f"{match['role']}-{match['index']}", []).append(place)
        return found

    def tokenizers(self) -> dict[str | None, str]:
        """Tokenizer folder or hub name by model; None stands for the only model."""
        found: dict[str | None, str] = {}
        for item in self.tokenizer:
            model, equals, folder = item.partition("=")
            found[model if equals else None] = folder if equals else model
        return found

    def aliases(self) -> dict[str, str | None]:
        """Alias to served name; None stands for the only model that engines serve."""
        pairs = (item.partition("=") for item in self.model_name)
        return {alias: served if equals else None for alias, equals, served in pairs}
