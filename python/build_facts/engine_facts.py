"""Version and summary of a wheel: what it is, and which engine it holds. Asked by scikit-build-core."""

import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def found(pattern, file):
    return re.search(pattern, (ROOT / file).read_text())[1]


def dynamic_metadata(settings, project):
    # As cmake/DsmoeCommit.cmake asks.
    described = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=12", "--match", "v*"],
                               capture_output=True, text=True)
    commit = described.stdout.strip() if described.returncode == 0 else "unknown"
    engine = found(r"kEngineVersion = (\d+);", "src/base/engine_version.h")
    return {
        "version": found(r"project\(dsmoe VERSION ([0-9.]+)", "CMakeLists.txt"),
        "description": "DeepSeekMoE language models, trained, evaluated, quantised and served by one engine with the same "
                       f"bits always (engine version {engine}, commit {commit})",
    }
