"""Names of proven files, and their publication."""

import dataclasses
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from tests.export.stub import write_stub
from tftq.errors import GateError
from tftq.evaluate.metrics import Validation
from tftq.export.census import Census
from tftq.export.forecaster import Exported
from tftq.export.prove import Proof
from tftq.export.publish import publish, to_be_proven
from tftq.io import sha256
from tftq.serve.proof import proven_bytes


@pytest.mark.parametrize("fails", [False, True])
def test_no_model_has_its_name_before_all_are_proven(tmp_path: Path, fails: bool) -> None:
    folder = tmp_path / "exports"
    step, forecast, proof = (folder / name for name in ("step.onnx", "forecast.onnx", "stream.export.json"))
    proven = Proof([], 0.0, Census({}, [], {}, 0, 0, {}, 0.0, 0.0, 0.0), {"rss_bytes": 5.0}, {})
    folder.mkdir()
    for path in (step, forecast, proof):
        path.write_text("of a run before")
    with suppress(GateError), to_be_proven(step, forecast, proof=proof) as unproven:
        assert list(folder.iterdir()) == []
        for part in unproven.parts:
            part.write_text("new")
        if fails:
            raise GateError("is not what it should be")
        unproven.proof = proven
    assert {path.name: path.read_text() for path in (step, forecast) if path.is_file()} == (
        {} if fails else {"step.onnx": "new", "forecast.onnx": "new"}
    )
    assert proven_bytes(proof, [sha256(path) for path in (step, forecast)]) == 5 if not fails else not list(folder.iterdir())


@pytest.fixture
def finished(tmp_path: Path) -> Exported:
    """An export as a run leaves it, unproven."""
    quality = Validation(1, 0.0, {0.5: 0.0}, {0.5: [0.0]}, 1.0, 0.0)
    for kind in ("fp32", "int8_ptq"):
        (tmp_path / f"{kind}.export.json").write_text(kind)
    return Exported(write_stub(tmp_path / "fp32.onnx"), proof=None, quality=quality, test=None)  # type: ignore[arg-type]


def test_publishing_copies_whole_files(tmp_path: Path, finished: Exported) -> None:
    other = dataclasses.replace(finished, path=write_stub(tmp_path / "int8_ptq.onnx", integer=True))
    target = tmp_path / "published" / "name"
    publish({"fp32": finished, "int8_ptq": other}, target)
    assert sorted(file.name for file in target.iterdir()) == ["fp32.export.json", "fp32.onnx", "int8_ptq.export.json", "int8_ptq.onnx"]
    assert all((target / model.path.name).read_bytes() == model.path.read_bytes() for model in (finished, other))
    publish({"fp32": dataclasses.replace(finished, path=write_stub(finished.path, integer=True))}, target)
    assert (target / "fp32.onnx").read_bytes() == other.path.read_bytes()  # the newer run replaces the older
    assert sorted(file.name for file in target.iterdir()) == ["fp32.export.json", "fp32.onnx"]  # nothing of the older run is left


def test_an_interrupted_copy_leaves_the_older_file_whole(tmp_path: Path, finished: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "published"
    publish({"fp32": finished}, target)
    before = (target / "fp32.onnx").read_bytes()

    def interrupted(source: Path, part: Path) -> None:
        Path(part).write_bytes(Path(source).read_bytes()[:10])
        raise OSError("no space left")

    monkeypatch.setattr(shutil, "copyfile", interrupted)
    with pytest.raises(OSError, match="no space left"):
        publish({"fp32": finished}, target)
    assert (target / "fp32.onnx").read_bytes() == before
