"""What env.json says: versions, device, and the commit of the code."""

import subprocess
from pathlib import Path

import pynvml
import pytest
import torch

import tftq
import tftq.jobs.environment
from tftq.jobs.environment import Device, device_of_torch, environment

CPU = Device("cpu", 1)


def fake_git(monkeypatch: pytest.MonkeyPatch, answers: dict[str, str]) -> None:
    """Let git know some commands and refuse the others."""

    def answer(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        if command[1] not in answers:
            raise subprocess.CalledProcessError(128, command)
        return subprocess.CompletedProcess(command, 0, answers[command[1]])

    monkeypatch.setattr(subprocess, "run", answer)


@pytest.mark.parametrize(("status", "dirty"), [("", False), (" M tftq/run.py\n", True)])
def test_the_commit_and_whether_it_was_changed(monkeypatch: pytest.MonkeyPatch, status: str, dirty: bool) -> None:
    fake_git(monkeypatch, {"ls-files": "__init__.py\n", "rev-parse": "abc123\n", "status": status})
    assert environment(CPU, 1)["git"] == {"commit": "abc123", "dirty": dirty}


def test_installed_below_another_checkout_that_one_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_git(monkeypatch, {"rev-parse": "abc123\n", "status": ""})
    found = environment(CPU, 1)["git"]
    assert found["commit"] is None and "not run from a git checkout" in found["reason"]


def test_without_git_the_reason_stands_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    found = environment(CPU, 1)["git"]
    assert found == {"commit": None, "reason": "FileNotFoundError: not run from a git checkout, or git is missing"}


def test_a_package_that_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tftq.jobs.environment, "PACKAGES", ("torch", "no-such-package-of-tftq"))
    assert list(environment(CPU, 1)["packages"]) == ["torch"]


def test_a_gpu_has_a_name_and_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "RTX 3050 Ti")
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: "570.10")
    found = device_of_torch(torch.device("cuda"))
    assert (found.name, found.driver) == ("RTX 3050 Ti", "570.10")


def test_a_driver_that_nvml_does_not_tell_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "RTX 3050 Ti")
    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    assert (device_of_torch(torch.device("cuda")).driver or "").startswith("not known: ")


def test_the_cpu_has_threads_and_no_driver() -> None:
    assert device_of_torch(torch.device("cpu")) == Device("cpu", torch.get_num_threads(), torch.version.cuda)


def test_changes_count_anywhere_in_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = set()

    def answer(command: list[str], *, cwd: Path, **_: object) -> subprocess.CompletedProcess[str]:
        folders.add(cwd)
        return subprocess.CompletedProcess(command, 0, "")

    monkeypatch.setattr(subprocess, "run", answer)
    environment(CPU, 1)
    assert folders == {Path(tftq.__file__).parent}
