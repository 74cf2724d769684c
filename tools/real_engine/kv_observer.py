"""A connector that transfers nothing: it writes down what its engine tells it of the cache.

Runs in the engine, by ``"kv_connector_module_path": "kv_observer"``; the zygote's folder is on its
path. Into the folder of its setting ``folder`` it puts:

* ``caches.json``: the configuration in plain values, and of each layer's view the offset in its
  memory, shape, strides and the element's size, in bytes (strides too), and the memory's size;
* ``<layer name>.json`` for every layer whenever a prompt of `MIN_TOKENS` and more is computed: the
  keys, values and slots that the backend is given to write, and the blocks' bytes afterwards.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "connector"))

base: Any = importlib.import_module("vllm.distributed.kv_transfer.kv_connector.v1.base")
plain: Any = importlib.import_module("transload_abi.builders").plain

MIN_TOKENS = 16
"""Fewer are not a prompt of the test's, but a step of decoding."""


class KvObserver(base.KVConnectorBase_V1, base.SupportsHMA):  # type: ignore[misc]
    """Never has tokens, never keeps blocks."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self._folder = Path(extra["folder"])
        self._config = kv_cache_config
        self._layers = vllm_config.compilation_config.static_forward_context

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Writes down where the views are, and listens to every layer's writer."""
        views = {}
        for name, view in kv_caches.items():
            memory, size = view.untyped_storage(), view.element_size()
            views[name] = {
                "offset": view.data_ptr() - memory.data_ptr(),
                "shape": list(view.shape),
                "strides": [stride * size for stride in view.stride()],
                "element_bytes": size,
                "memory": memory.data_ptr(),
                "memory_bytes": memory.nbytes(),
            }
            self._listen(name, self._layers[name].impl)
        found = {"config": plain(self._config), "views": views}
        path = self._folder / "caches.json"
        path.with_suffix(".new").write_text(json.dumps(found))
        os.replace(path.with_suffix(".new"), path)

    def _listen(self, name: str, impl: Any) -> None:
        write = impl.do_kv_cache_update

        def write_and_keep(layer: Any, key: Any, value: Any, cache: Any, slots: Any) -> None:
            write(layer, key, value, cache, slots)
            num_tokens = slots.numel()
            if num_tokens >= MIN_TOKENS:
                self._keep(name, key[:num_tokens], value[:num_tokens], cache, slots)

        impl.do_kv_cache_update = write_and_keep

    def _keep(self, name: str, key: Any, value: Any, cache: Any, slots: Any) -> None:
        """What was written, and every touched block as it is in memory now."""
        blocks = sorted({slot // cache.shape[2] for slot in slots.tolist()})
        step = cache.stride(0) * cache.element_size()
        found = {
            "key": key.float().numpy().tobytes().hex(),
            "value": value.float().numpy().tobytes().hex(),
            "shape": list(key.shape),
            "slots": slots.tolist(),
            "blocks": {
                block: ctypes.string_at(cache.data_ptr() + block * step, step).hex()
                for block in blocks
            },
        }
        (self._folder / f"{name}.json").write_text(json.dumps(found))

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Nothing to load."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **_: Any) -> None:
        """Nothing to save."""

    def wait_for_save(self) -> None:
        """Nothing to wait for."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        """None, and nothing to come."""
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Nothing to remember."""

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """Nothing to tell the worker."""
        return base.KVConnectorMetadata()

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:
        """The blocks are free."""
        return False, None
