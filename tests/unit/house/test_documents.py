"""What the documents say of settings, endpoints and metrics is what the code has."""

import re
import tomllib
from pathlib import Path

import pytest

from transload_router.app.metrics import Metrics
from transload_router.core.bodies.endpoints import ENDPOINTS
from transload_router.settings import Settings

HOUSE = Path(__file__).parents[3]
README = (HOUSE / "README.md").read_text()
FLAGS = {f"--{name.replace('_', '-')}" for name in Settings.model_fields}
MAKEFILE = (HOUSE / "Makefile").read_text()


def test_flags_in_the_readme_exist() -> None:
    told = set(re.findall(r"`(--[a-z-]+)", README))
    assert told
    assert told <= FLAGS | {"--help"}


@pytest.mark.parametrize(
    ("flag", "default"), re.findall(r"^\| `--([a-z-]+)` \| `?([a-z0-9]+)`? \|", README, re.M)
)
def test_defaults_in_the_readme_are_true(flag: str, default: str) -> None:
    value = Settings.model_fields[flag.replace("-", "_")].default
    assert default == (f"{value:g}" if isinstance(value, float) else str(value))


def test_targets_in_the_documents_exist() -> None:
    for name in ("README.md", "CONTRIBUTING.md", "bench/README.md"):
        for line in re.findall(r"\bmake ((?:[a-z-]+ ?)+)", (HOUSE / name).read_text()):
            assert re.search(rf"^{line.split()[0]}:", MAKEFILE, re.M), f"{name}: make {line}"


def test_links_in_the_documents_lead_somewhere() -> None:
    for name in ("README.md", "CONTRIBUTING.md", "router/DESIGN.md", "bench/README.md"):
        page = HOUSE / name
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{name} links to {target}"


def test_every_vector_is_described() -> None:
    folder = HOUSE / "tests" / "protocol" / "vectors"
    told = (folder / "README.md").read_text()
    vectors = [str(path.relative_to(folder)) for path in folder.rglob("*.jsonl")]
    assert vectors
    assert [name for name in vectors if name.removesuffix(".jsonl") not in told] == []
    for recorder in re.findall(r"`(tools/[a-z_]+\.py)`", told):
        assert (HOUSE / recorder).exists(), recorder


def test_markers_are_told_to_contributors() -> None:
    pyproject = tomllib.loads((HOUSE / "pyproject.toml").read_text())
    markers = pyproject["tool"]["pytest"]["ini_options"]["markers"]
    told = (HOUSE / "CONTRIBUTING.md").read_text()
    assert [one for one in markers if f"`{one.partition(':')[0]}`" not in told] == []


def test_the_metric_table_is_whole() -> None:
    design = (HOUSE / "router" / "DESIGN.md").read_text()
    told = set(re.findall(r"`(transload_[a-z_]+)`", design))
    metrics = Metrics(lambda: iter(()), lambda: iter(()))
    made = set(re.findall(r"^# TYPE (\S+)", metrics.render().decode(), re.M))
    assert told == made


def test_every_disaggregated_endpoint_is_named_in_the_design() -> None:
    design = (HOUSE / "router" / "DESIGN.md").read_text()
    assert [path for path in ENDPOINTS if f"`{path}`" not in design] == []
