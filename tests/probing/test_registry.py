from __future__ import annotations

from pathlib import Path

import pytest

from k3gate.errors import UsageError
from k3gate.probing import registry


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes a distribution visible: `install(name="module:Class")`, with the module's source."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(points: dict[str, str], module: str = "", source: str = "") -> None:
        info = tmp_path / f"stranger_{len(list(tmp_path.glob('*.dist-info')))}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {info.name.split('-')[0]}\nVersion: 1\n"
        )
        lines = "\n".join(f"{name} = {value}" for name, value in points.items())
        (info / "entry_points.txt").write_text(f"[k3gate.probes]\n{lines}\n")
        if module:
            (tmp_path / f"{module}.py").write_text(source)

    return make


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(UsageError, match=r"'selftset' is unknown: did you mean 'selftest'\? Known: .*memory"):
        registry.load(["selftset"])


def test_the_self_test_runs_by_name_only(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = registry.Listing("selftest", "k3gate.probes.selftest:SelfTestProbe", "k3gate", "0")
    monkeypatch.setattr(registry, "installed", lambda notices=None: [ours])
    assert registry.load() == []
    assert [probe.name for probe in registry.load(["selftest", "selftest"])] == ["selftest"]


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("raise RuntimeError('no such\\nluck')", "RuntimeError: no such luck"),
        ("class Odd:\n    name = 'odd'", "it lacks title, metrics, applies, cases, run"),
        ("Odd = 3", "it is no class"),
        ("", "has no attribute 'Odd'"),
    ],
)
def test_a_broken_probe_is_a_notice_unless_asked_for(install, request, source: str, complaint: str) -> None:
    module = f"broken_{abs(hash(request.node.name))}"
    install({"odd": f"{module}:Odd"}, module, source)
    with pytest.raises(UsageError) as caught:
        registry.load(["odd"])
    assert complaint in str(caught.value) and "\n" not in str(caught.value)
    notices: list[str] = []
    assert "odd" not in [probe.name for probe in registry.load(None, notices)]
    assert any(complaint in notice and "left out" in notice for notice in notices)


def test_a_stranger_cannot_take_the_name_of_a_probe_of_ours(install) -> None:
    install({"selftest": "stranger:Probe"})
    notices: list[str] = []
    (listing,) = [one for one in registry.installed(notices) if one.name == "selftest"]
    assert listing.ours
    assert any("'selftest' of stranger_0" in notice and "hidden" in notice for notice in notices)
