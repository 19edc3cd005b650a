# The package as a user meets it: import, versions, the command line, the examples of docstrings and of docs/python.md.
import doctest
import importlib.metadata
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest
from conftest import REPOSITORY, command

import dsmoe


def test_import_is_quick_and_brings_nothing_heavy():
    code = ("import sys, time; begin = time.perf_counter(); import dsmoe; took = time.perf_counter() - begin\n"
            "assert not {'numpy', 'torch', 'transformers'} & set(sys.modules), 'heavy'; print(took)")
    took = min(float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
               for _ in range(5))
    limit = float(os.environ.get("DSMOE_IMPORT_SECONDS", "1"))
    assert took <= limit, f"{took:.3f} s"


def test_versions_agree():
    version = re.search(r"project\(dsmoe VERSION ([0-9.]+)", (REPOSITORY / "CMakeLists.txt").read_text())[1]
    engine = re.search(r"kEngineVersion = (\d+)", (REPOSITORY / "src/base/engine_version.h").read_text())[1]
    assert dsmoe.__version__ == version and dsmoe.engine_version == int(engine)
    assert command("--version").strip() == f"dsmoe {version} ({dsmoe.commit}), engine version {engine}"


def test_the_metadata_says_which_engine_it_is():
    try:
        summary = importlib.metadata.metadata("dsmoe")["Summary"]
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("run from the tree: nothing is installed")
    assert f"engine version {dsmoe.engine_version}, commit {dsmoe.commit}" in summary
    assert importlib.metadata.version("dsmoe") == dsmoe.__version__


def test_the_command_line_comes_along(folder):
    assert "DeepSeekMoE" in command("--help")
    done = subprocess.run([sys.executable, "-m", "dsmoe", "info", "nothing"], capture_output=True, text=True)
    assert done.returncode == 1 and "no such folder" in done.stderr
    done = subprocess.run([sys.executable, "-m", "dsmoe", "info", "--nonsense"], capture_output=True, text=True)
    assert done.returncode == 2
    scripts = pathlib.Path(sys.executable).parent / "dsmoe"
    if scripts.exists():  # installed, not run from the tree
        assert subprocess.run([scripts, "--version"], capture_output=True, text=True, check=True).stdout.startswith("dsmoe ")


def test_help_is_worth_reading():
    text = subprocess.run([sys.executable, "-c", "import dsmoe; help(dsmoe)"], capture_output=True, text=True).stdout
    for word in ("load", "generate", "train", "read_run", "MoELayer", "seed"):
        assert word in text
    for name in dsmoe.__all__:
        if not isinstance(getattr(dsmoe, name), (str, int)):
            assert getattr(dsmoe, name).__doc__, name
    for name in ("generate", "chat", "forward", "score", "evaluate", "encode", "decode", "apply_chat_template"):
        assert ">>>" in getattr(dsmoe.Model, name).__doc__, name


@pytest.mark.parametrize("name", ["dsmoe", "dsmoe._model", "dsmoe._run", "dsmoe._train", "dsmoe.torch"])
def test_examples_in_docstrings(name, model, folder, config, corpus, finished_run, tmp_path):
    if name == "dsmoe.torch":
        pytest.importorskip("torch")
    module = importlib.import_module(name)
    scratch = tmp_path
    globs = {"dsmoe": dsmoe, "model": model, "folder": folder, "config": config, "corpus": corpus,
             "finished_run": finished_run}
    count = 0
    for number, test in enumerate(doctest.DocTestFinder().find(module)):
        (scratch / str(number)).mkdir()
        test.globs.update(globs, scratch=scratch / str(number))
        log = []
        failed, tried = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=log.append)
        assert failed == 0, "".join(log)
        count += tried
    assert count > 0


def test_the_first_half_hour_runs(folder, config, corpus, tmp_path, monkeypatch):
    text = (REPOSITORY / "docs/python.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 4
    monkeypatch.chdir(tmp_path)
    os.symlink(folder, "my-model")
    os.symlink(config, "config.json")
    os.symlink(corpus, "corpus.txt")
    names = {}
    for block in blocks:
        if "import torch" in block and importlib.util.find_spec("torch") is None:
            continue  # the rest of the page needs no PyTorch
        if "transformers" in block:
            continue  # needs a downloaded model; tests/test_hf.py has the same on small ones
        exec(compile(block, "docs/python.md", "exec"), names)
