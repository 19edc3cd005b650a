# Models give the numbers and texts of the command line, alone, in a batch, as a stream and from many threads.
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from conftest import command

import dsmoe

PROMPT = "the 7 little"


def sha(*arrays):
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def read_safetensors(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    kinds = {"F32": np.float32, "I32": np.int32}
    return {name: np.frombuffer(data[slice(*entry["data_offsets"])], kinds[entry["dtype"]]).reshape(entry["shape"])
            for name, entry in header.items() if name != "__metadata__"}


@pytest.mark.parametrize("options", [
    {"temperature": 0.0}, {"seed": 7}, {"seed": 9, "top_p": 0.8, "temperature": 1.3}, {"seed": 3, "top_k": 5, "min_p": 0.02},
    {"seed": 5, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
])
def test_generate_equals_the_command_line(model, folder, options):
    flags = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
    theirs = json.loads(command("generate", folder, "-p", PROMPT, "--max-tokens", 24, "--json", "--quiet", *flags))
    ours = model.generate(PROMPT, max_tokens=24, **{"seed": 0, **options})
    assert ours.tokens == theirs["tokens"]
    assert ours == theirs["text"]
    assert ours.finish_reason == theirs["finish_reason"]
    if "seed" in options:
        other = model.generate(PROMPT, max_tokens=24, **{**options, "seed": 1234})
        assert other.tokens != ours.tokens, "another seed must show"


def test_stream_batch_and_alone_are_one_answer(model):
    prompts = [PROMPT, "a fox", "over the hills and", "rivers"]
    alone = [model.generate(p, max_tokens=20, seed=4) for p in prompts]
    assert [a.tokens for a in model.generate(prompts, max_tokens=20, seed=4)] == [a.tokens for a in alone]
    stream = model.generate(PROMPT, max_tokens=20, seed=4, stream=True)
    assert "".join(stream) == alone[0]
    assert stream.answer.tokens == alone[0].tokens
    ids = model.encode(PROMPT)
    assert model.generate(ids, max_tokens=20, seed=4) == alone[0]
    assert model.generate(np.array(ids), max_tokens=20, seed=4) == alone[0]


def test_stop_strings_and_constraints(model):
    whole = model.generate(PROMPT, max_tokens=40, temperature=0, ignore_eos=True)
    mark = whole[5:8]
    cut = model.generate(PROMPT, max_tokens=40, temperature=0, ignore_eos=True, stop=mark)
    assert cut == whole[: whole.index(mark)] and cut.stop == mark and cut.finish_reason == "stop"
    assert model.generate(PROMPT, max_tokens=40, seed=1, choices=["red", "blue"]) in ("red", "blue")
    assert model.generate(PROMPT, max_tokens=40, seed=1, regex="[0-9]{3}").isdigit()
    answer = model.generate(PROMPT, max_tokens=60, seed=1, schema={"type": "integer", "minimum": 3, "maximum": 9})
    assert 3 <= json.loads(answer) <= 9


def test_chat_uses_the_template(model):
    messages = [{"role": "user", "content": "Hello"}]
    prompt = model.apply_chat_template(messages)
    assert prompt.endswith("User: Hello\n\nAssistant:")
    ids = model.encode(prompt, add_special=False)
    assert model.chat(messages, max_tokens=8, seed=2) == model.generate(ids, max_tokens=8, seed=2)


def test_forward_equals_the_command_line(model, folder, tmp_path):
    ids = model.encode("the 7 little red foxes ran over 4 hills")
    command("logits", folder, "--tokens", ",".join(map(str, ids)), "-o", tmp_path / "out", "--quiet")
    theirs = read_safetensors(tmp_path / "out")
    out = model.forward(ids, hidden=True)
    assert sha(out.logits) == sha(theirs["logits"])
    for place, layer in enumerate(model.moe_layers):
        assert sha(out.routes[:, place]) == sha(theirs[f"layers.{layer}.topk_index"])
        assert sha(out.gates[:, place]) == sha(theirs[f"layers.{layer}.topk_weight"])
    assert out.hidden.shape == (len(ids), model.config["hidden_size"])
    assert sha(model.forward(ids[:-1] + [ids[-1] ^ 1]).logits) != sha(out.logits), "another token must show"


def test_arrays_leave_without_a_copy(model):
    out = model.forward([0, 70, 71])
    assert not out.logits.flags.owndata and out.logits.flags.writeable
    same = np.from_dlpack(out.logits)
    assert same.__array_interface__["data"] == out.logits.__array_interface__["data"]
    before = out.logits.copy()
    del out
    assert (same == before).all(), "the memory lives as long as somebody looks at it"


def test_replayed_routes_give_the_same_logits_and_others_give_others(model):
    ids = model.encode(PROMPT)
    out = model.forward(ids)
    assert sha(model.forward(ids, replay=out.routes).logits) == sha(out.logits)
    other = (out.routes + 1) % model.config["n_routed_experts"]
    replayed = model.forward(ids, replay=other)
    assert (replayed.routes == other).all() and sha(replayed.logits) != sha(out.logits)
    assert model.forward(ids, experts_per_token=4).routes.shape[2] == 4
    answer = model.generate(PROMPT, max_tokens=6, seed=1, routes=True, ignore_eos=True)
    assert (answer.routes[: len(ids)] == out.routes).all()
    again = model.generate(PROMPT, max_tokens=6, seed=1, replay=answer.routes, ignore_eos=True)
    assert again.tokens == answer.tokens
    for bad in (other[:-1], other[:, :, :1], np.full_like(other, 77), np.zeros_like(other)):
        with pytest.raises(dsmoe.InputError):
            model.forward(ids, replay=bad)


def test_scores_equal_the_command_line(model, folder, tmp_path):
    pairs = [("the 7 little", " red foxes"), ("", "rivers"), ("over ", "4 hills and 3"), ("a b c", "d")]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps({"context": a, "continuation": b}) + "\n" for a, b in pairs))
    theirs = [json.loads(line) for line in command("eval", folder, "--pairs", file, "--json", "--quiet").splitlines()]
    ours = model.score(pairs)
    assert [s.log_likelihood for s in ours] == [line["loglikelihood"] for line in theirs]
    assert [s.greedy for s in ours] == [line["greedy"] for line in theirs]
    ids = [(model.encode(a), model.encode(b, add_special=False)) for a, b in [("the 7", " red")]]
    assert model.score(ids)[0].tokens == len(ids[0][1])


def test_evaluation_equals_the_command_line(model, folder, corpus, tmp_path):
    theirs = json.loads(command("eval", folder, "--text", corpus, "--json", "--quiet"))
    assert model.evaluate(corpus.read_text()) == theirs
    ids = model.encode(corpus.read_text())
    (tmp_path / "ids").write_text(",".join(map(str, ids)))
    theirs = json.loads(command("eval", folder, "--tokens", tmp_path / "ids", "--window", 32, "--json", "--quiet"))
    assert model.evaluate(np.array(ids, dtype=np.int64), window=32) == theirs


def test_quantised_folders_equal_the_command_lines(folder, tmp_path):
    dsmoe.quantise(folder, tmp_path / "ours", to="int4")
    command("quantize", folder, "--to", "int4", "--no-compare", "-o", tmp_path / "theirs", "--quiet")
    names = sorted(p.name for p in (tmp_path / "ours").iterdir())
    assert names == sorted(p.name for p in (tmp_path / "theirs").iterdir())
    for name in names:
        assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes(), name
    stored = dsmoe.load(tmp_path / "ours").forward([0, 70, 71]).logits
    assert sha(stored) == sha(dsmoe.load(folder, weights="int4").forward([0, 70, 71]).logits)
    assert sha(stored) != sha(dsmoe.load(folder).forward([0, 70, 71]).logits)


def test_errors_are_exceptions_with_our_texts(model, folder, tmp_path):
    with pytest.raises(dsmoe.IoError, match="no such folder"):
        dsmoe.load(tmp_path / "nothing")
    with pytest.raises(dsmoe.InputError, match="vocabulary holds 0 to 299"):
        model.forward([0, 300])
    with pytest.raises(dsmoe.InputError, match="expected 0 to 2147483647"):
        model.forward([0, 2**40])
    with pytest.raises(dsmoe.InputError, match="whole numbers"):
        model.forward([0.5])
    with pytest.raises(dsmoe.InputError, match="does not fit"):
        model.generate([0] * 500)
    with pytest.raises(dsmoe.InputError, match="temperature"):
        model.generate(PROMPT, temperature=-1)
    with pytest.raises(dsmoe.UsageError, match="device='tpu'"):
        dsmoe.load(folder, device="tpu")
    with pytest.raises(dsmoe.InputError, match="no chat template"):
        (tmp_path / "plain").mkdir()
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            os.link(folder / name, tmp_path / "plain" / name)
        dsmoe.load(tmp_path / "plain").chat([{"role": "user", "content": "x"}])
    assert issubclass(dsmoe.InputError, ValueError) and issubclass(dsmoe.IoError, OSError)
    assert issubclass(dsmoe.InputError, dsmoe.Error)


def test_eight_threads_get_the_answers_they_would_get_alone(model):
    prompts = [f"the {i} little" for i in range(8)]
    alone = [model.generate(p, max_tokens=12, seed=i).tokens for i, p in enumerate(prompts)]
    logits = [sha(model.forward(model.encode(p)).logits) for p in prompts]
    end = time.monotonic() + float(os.environ.get("DSMOE_SOAK_SECONDS", "3"))
    wrong, rounds = [], [0] * 8

    def work(i):
        while time.monotonic() < end:
            if model.generate(prompts[i], max_tokens=12, seed=i).tokens != alone[i]:
                wrong.append(("generate", i))
            if sha(model.forward(model.encode(prompts[i])).logits) != logits[i]:
                wrong.append(("forward", i))
            rounds[i] += 1

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and min(rounds) > 0, (wrong, rounds)


def test_other_threads_run_while_a_model_computes(model):
    ticks, done = [], threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.002)

    thread = threading.Thread(target=tick)
    thread.start()
    begin = time.monotonic()
    while time.monotonic() - begin < 0.5:
        model.forward(list(range(100)))
    done.set()
    thread.join()
    assert len(ticks) > 10, "the interpreter's lock is let go"


@pytest.mark.parametrize("call", ["model.generate('the', ignore_eos=True, max_tokens=1)", "model.evaluate([5, 6] * 60)"])
def test_ctrl_c_ends_work_and_the_model_goes_on(folder, call):
    code = (f"import dsmoe, sys\nmodel = dsmoe.load({str(folder)!r})\nprint('ready', flush=True)\ntry:\n"
            f"    while True: {call}\nexcept KeyboardInterrupt:\n"
            "    print(len(model.generate('the', max_tokens=3, seed=1, ignore_eos=True).tokens))")
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=60)[0] == "3\n" and child.returncode == 0
