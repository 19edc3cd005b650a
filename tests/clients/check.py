"""The openai and anthropic SDKs, LangChain and lm-evaluation-harness against a running server; see run.sh."""

import argparse
import array
import json
import os
import pathlib
import subprocess
import sys
import typing

import anthropic
import openai
import pydantic
from frameworks import check_agents, check_instructor, check_llm
from langchain_openai import ChatOpenAI
from recorder import Recorder

HERE = pathlib.Path(__file__).resolve().parent
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "The cat sat on"}]


def check_openai(url, key):
    """Plain and streamed, with log-probabilities, errors as the SDK's own types."""
    client = openai.OpenAI(base_url=url, api_key=key)
    model = client.models.list().data[0].id
    plain = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=12, temperature=0, seed=1, logprobs=True, top_logprobs=2
    )
    assert plain.choices[0].finish_reason in ("stop", "length"), plain
    assert len(plain.choices[0].logprobs.content) == plain.usage.completion_tokens
    stream = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=12, temperature=0, seed=1, stream=True,
        stream_options={"include_usage": True},
    )
    text, usage = "", None
    for chunk in stream:
        usage = chunk.usage or usage
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
    assert text == plain.choices[0].message.content, (text, plain)
    assert usage.total_tokens == plain.usage.total_tokens
    completion = client.completions.create(
        model=model, prompt=["The cat", "The dog"], max_tokens=8, n=2, temperature=0.8, seed=3, stop=["."],
        extra_body={"return_routed_experts": True},
    )
    assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]
    assert len(completion.choices[0].routed_experts[0]) == 2
    joined = "".join(
        chunk.choices[0].text for chunk in client.completions.create(
            model=model, prompt="The cat", max_tokens=8, temperature=0.8, seed=3, stream=True)
    )
    assert joined == client.completions.create(
        model=model, prompt="The cat", max_tokens=8, temperature=0.8, seed=3).choices[0].text
    for bad, error in [
        ({"temperature": 9}, openai.BadRequestError),
        ({"model": "other"}, openai.NotFoundError),
        ({"functions": [{"name": "f"}]}, openai.BadRequestError),
    ]:
        try:
            client.chat.completions.create(**{"model": model, "messages": MESSAGES, **bad})
        except error:
            continue
        raise AssertionError(f"{bad} was not refused with {error}")
    try:
        openai.OpenAI(base_url=url, api_key="wrong").models.list()
        raise AssertionError("a wrong key was accepted")
    except openai.AuthenticationError:
        pass
    print("openai SDK: ok")
    return model


TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a town",
        "parameters": {
            "type": "object",
            "properties": {"town": {"type": "string", "maxLength": 8}, "days": {"enum": [1, 2, 3]}},
            "required": ["town", "days"],
            "additionalProperties": False,
        },
    },
}


def check_tools(url, key, model):
    """A forced call by the openai SDK, plain and streamed, its result sent back; bind_tools of LangChain; parse()."""
    client = openai.OpenAI(base_url=url, api_key=key)
    asked = {"model": model, "messages": MESSAGES, "tools": [TOOL], "max_tokens": 120, "seed": 2,
             "tool_choice": {"type": "function", "function": {"name": "weather"}}}
    plain = client.chat.completions.create(**asked).choices[0]
    call = plain.message.tool_calls[0]
    assert plain.finish_reason == "tool_calls" and call.function.name == "weather", plain
    arguments = json.loads(call.function.arguments)
    assert arguments["days"] in (1, 2, 3) and isinstance(arguments["town"], str), arguments
    pieces = [c.choices[0].delta for c in client.chat.completions.create(**asked, stream=True) if c.choices]
    streamed = "".join(d.tool_calls[0].function.arguments for d in pieces if d.tool_calls)
    assert streamed == call.function.arguments, (streamed, call)
    back = [*MESSAGES, plain.message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "sun"}]
    again = client.chat.completions.create(model=model, messages=back, max_tokens=8, seed=2)
    assert again.choices[0].finish_reason in ("stop", "length")

    class Weather(pydantic.BaseModel):
        """Two fields that every answer can have."""

        sunny: bool
        days: typing.Literal[1, 2, 3]

    parsed = client.chat.completions.parse(model=model, messages=MESSAGES, response_format=Weather, max_tokens=60, seed=2)
    assert parsed.choices[0].message.parsed.days in (1, 2, 3), parsed
    chat = ChatOpenAI(base_url=url, api_key=key, model=model, max_tokens=120, seed=2)
    bound = chat.bind_tools([TOOL], tool_choice="weather").invoke("The dog sat on")
    assert bound.tool_calls[0]["args"]["days"] in (1, 2, 3), bound
    for method in ("json_schema", "function_calling"):
        told = chat.with_structured_output(Weather, method=method).invoke("The dog sat on")
        assert told.days in (1, 2, 3), told
    print("tools and structured output: ok")


def check_responses(url, key, model):
    """The openai SDK's other routes: responses, plain and streamed, and embeddings."""
    client = openai.OpenAI(base_url=url, api_key=key)
    asked = {"model": model, "input": "The cat sat on", "instructions": "Be brief.", "max_output_tokens": 12,
             "temperature": 0, "store": False}
    plain = client.responses.create(**asked)
    assert plain.status in ("completed", "incomplete"), plain
    assert plain.usage.output_tokens <= 12
    with client.responses.stream(**asked) as stream:
        events = list(stream)
    names = [event.type for event in events]
    assert names[0] == "response.created" and "response.output_text.delta" in names, names
    # The SDK's get_final_response() knows no other end than response.completed: an answer that was cut ends otherwise.
    assert names[-1] == f"response.{plain.status}", (names, plain)
    assert events[-1].response.output_text == plain.output_text, (events[-1], plain)
    floats = client.embeddings.create(model=model, input=["The cat", "The dog"], encoding_format="float")
    packed = client.embeddings.create(model=model, input=["The cat", "The dog"])  # base64 behind the scenes
    assert [e.index for e in floats.data] == [0, 1]
    as_f32 = array.array("f", floats.data[0].embedding)  # written with as many digits as tell F32 numbers apart
    assert list(as_f32) == [float(x) for x in packed.data[0].embedding], (floats.data[0], packed.data[0])
    print("openai SDK, responses and embeddings: ok")


def check_anthropic(url, key, model):
    """The anthropic SDK: plain, streamed, counted, refused; tools and their results; answers held to a schema."""
    client = anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key=key, max_retries=0)
    # Its newest versions have no word for the temperature.
    asked = {"model": model, "max_tokens": 12, "extra_body": {"temperature": 0}, "system": "Be brief.",
             "messages": [{"role": "user", "content": "The cat sat on"}]}
    plain = client.messages.create(**asked)
    assert plain.stop_reason in ("end_turn", "max_tokens"), plain
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    said = "".join(block.text for block in plain.content)
    assert text == said == "".join(block.text for block in final.content), (text, plain)
    count = client.messages.count_tokens(**{name: asked[name] for name in ("model", "system", "messages")})
    used = plain.usage.input_tokens + plain.usage.cache_read_input_tokens
    assert count.input_tokens == used, (count, plain.usage)
    try:
        client.messages.create(**{**asked, "thinking": {"type": "enabled", "budget_tokens": 1024}})
        raise AssertionError("thinking was not refused")
    except anthropic.BadRequestError as error:
        assert "thinking" in error.body["error"]["message"]
    check_anthropic_tools(client, {**asked, "max_tokens": 120})
    print("anthropic SDK: ok")


def check_anthropic_tools(client, asked):
    """A forced call, plain and streamed, its result sent back; parse()."""
    tool = {"name": "weather", "description": "The weather of a town", "input_schema": TOOL["function"]["parameters"]}
    forced = {**asked, "tools": [tool], "tool_choice": {"type": "tool", "name": "weather"}}
    answer = client.messages.create(**forced)
    assert answer.stop_reason == "tool_use", answer
    call = next(block for block in answer.content if block.type == "tool_use")
    assert call.name == "weather" and call.input["days"] in (1, 2, 3), answer
    with client.messages.stream(**forced) as stream:
        streamed = stream.get_final_message()
    assert [b.input for b in streamed.content if b.type == "tool_use"] == [call.input], (streamed, answer)
    back = [*asked["messages"], {"role": "assistant", "content": [block.model_dump() for block in answer.content]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sun"}]}]
    again = client.messages.create(**{**asked, "messages": back, "max_tokens": 8})
    assert again.stop_reason in ("end_turn", "max_tokens"), again

    class Weather(pydantic.BaseModel):
        sunny: bool
        days: typing.Literal[1, 2, 3]

    parsed = client.messages.parse(**asked, output_format=Weather).parsed_output
    assert parsed.days in (1, 2, 3), parsed
    try:
        client.messages.create(**asked, output_config={"effort": "low"})
        raise AssertionError("an effort was not refused")
    except anthropic.BadRequestError as error:
        assert "output_config.effort" in error.body["error"]["message"], error.body


def check_langchain(url, key, model):
    """invoke() and stream() of ChatOpenAI."""
    chat = ChatOpenAI(base_url=url, api_key=key, model=model, temperature=0, max_tokens=12, seed=1)
    answer = chat.invoke("The dog sat on")
    assert isinstance(answer.content, str)
    assert answer.usage_metadata["output_tokens"] <= 12
    streamed = "".join(chunk.content for chunk in chat.stream("The dog sat on"))
    assert streamed == answer.content, (streamed, answer.content)
    print("LangChain: ok")


def check_lm_eval(url, key, model, folder, program, work):
    """loglikelihood of local-completions equals dsmoe eval --pairs."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    os.environ["OPENAI_API_KEY"] = key
    tasks = work / "tasks"
    tasks.mkdir(exist_ok=True)
    (tasks / "pairs.yaml").write_text((HERE / "pairs.yaml").read_text().replace("PAIRS", str(HERE / "pairs.jsonl")))
    result = lm_eval.simple_evaluate(
        model="local-completions",
        model_args=f"model={model},base_url={url}/completions,tokenizer={folder},tokenizer_backend=huggingface,"
        "num_concurrent=2,max_length=256,batch_size=2",
        tasks=["dsmoe_pairs"],
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
    )
    samples = sorted(result["samples"]["dsmoe_pairs"], key=lambda sample: sample["doc_id"])
    theirs = [(float(s["filtered_resps"][0][0]), bool(s["filtered_resps"][0][1])) for s in samples]
    lines = subprocess.run(
        [program, "eval", folder, "--pairs", str(HERE / "pairs.jsonl"), "--bos", "no", "--json", "--quiet"],
        check=True, capture_output=True, text=True,
    ).stdout
    ours = [json.loads(line) for line in lines.splitlines() if line.startswith("{")]
    assert len(ours) == len(theirs) > 0, lines
    for mine, (log_likelihood, greedy) in zip(ours, theirs):
        assert abs(mine["loglikelihood"] - log_likelihood) < 1e-5, (mine, log_likelihood)
        assert mine["greedy"] == greedy, (mine, greedy)
    print(f"lm-eval: {len(ours)} log-likelihoods equal dsmoe eval --pairs")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--program", required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--record", help="write the requests to this file")
    options = parser.parse_args()
    recorder = Recorder(options.port)
    url = f"http://127.0.0.1:{recorder.port}/v1"
    model = check_openai(url, options.key)
    check_tools(url, options.key, model)
    check_responses(url, options.key, model)
    check_anthropic(url, options.key, model)
    check_langchain(url, options.key, model)
    check_instructor(url, options.key, model)
    check_agents(url, options.key, model)
    check_llm(url, options.key, model, options.work)
    check_lm_eval(url, options.key, model, options.model, options.program, options.work)
    if options.record:
        # What needs a key of its own is left out: the replay runs without keys.
        recorder.lines = [line for line in recorder.lines if line["status"] != 401]
        recorder.write(options.record)
        print(f"{len(recorder.lines)} requests recorded")


if __name__ == "__main__":
    sys.exit(main())
