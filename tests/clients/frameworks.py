"""instructor in all its modes, openai-agents by its default route, and `llm --schema`, against a running server; see run.sh."""

import json
import os
import subprocess
import sys
import typing

import agents
import anthropic
import instructor
import openai
import pydantic
from instructor.core import InstructorRetryException

ASKED = [{"role": "user", "content": "The cat sat on"}]


class Weather(pydantic.BaseModel):
    """The weather of a day."""

    sunny: bool
    days: typing.Literal[1, 2, 3]


class AnyWeather(pydantic.BaseModel):
    """What every JSON object is: a mode that asks for no schema gets no more from an untrained model."""

    sunny: typing.Any = None
    days: typing.Any = None


def as_pattern(text_before, text_after):
    """An answer in the form that a trained model gives unasked: a mode that trusts it leaves the form to the prompt."""
    pattern = text_before + r'\{"sunny": (true|false), "days": [123]\}' + text_after
    return {"structured_outputs": {"regex": pattern}}


def is_weather(told):
    return told.days in (1, 2, 3) and told.sunny in (True, False)


def check_instructor_openai(url, key, model):
    """Every mode of instructor that the openai SDK has."""
    client = openai.OpenAI(base_url=url, api_key=key)
    asked = {"model": model, "messages": ASKED, "max_tokens": 200, "seed": 2, "max_retries": 0}
    create = {mode: instructor.from_openai(client, mode=mode, model=model).create for mode in (
        instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA, instructor.Mode.JSON,
        instructor.Mode.JSON_O1, instructor.Mode.MD_JSON, instructor.Mode.PARALLEL_TOOLS, instructor.Mode.FUNCTIONS)}
    for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA, instructor.Mode.FUNCTIONS):
        assert is_weather(create[mode](response_model=Weather, **asked)), mode
    assert is_weather(create[instructor.Mode.TOOLS](response_model=Weather, strict=True, **asked))
    for mode in (instructor.Mode.JSON, instructor.Mode.JSON_O1):
        assert create[mode](response_model=AnyWeather, **asked) is not None, mode
    fenced = as_pattern("```json\\n", "\\n```")
    assert is_weather(create[instructor.Mode.MD_JSON](response_model=Weather, extra_body=fenced, **asked))
    # What comes while it grows: the last of the partial objects is whole.
    *_, last = create[instructor.Mode.TOOLS](response_model=instructor.Partial[Weather], stream=True, **asked)
    assert is_weather(last), last
    *_, last = create[instructor.Mode.JSON_SCHEMA](response_model=instructor.Partial[Weather], stream=True, **asked)
    assert is_weather(last), last
    # Calls that a model may or may not make: an untrained one makes them where it is held to a text that begins one.
    called = {"regex": r'<tool_call>\n\{"name": "Weather", "arguments": \{"sunny": (true|false), "days": [123]\}\}\n</tool_call>'}
    several = create[instructor.Mode.PARALLEL_TOOLS](
        response_model=typing.Iterable[Weather], extra_body={"structured_outputs": called}, **asked)
    several = list(several)
    assert several and all(is_weather(told) for told in several), several
    asked["max_output_tokens"] = asked.pop("max_tokens")
    asked["extra_body"] = {"seed": asked.pop("seed")}
    responses = instructor.from_openai(client, mode=instructor.Mode.RESPONSES_TOOLS, model=model)
    assert is_weather(responses.create(response_model=Weather, **asked))
    built_in = instructor.from_openai(client, mode=instructor.Mode.RESPONSES_TOOLS_WITH_INBUILT_TOOLS, model=model)
    assert is_weather(built_in.create(response_model=Weather, **asked))


def check_instructor_anthropic(url, key, model):
    """Every mode of instructor that the anthropic SDK has, but thinking, which the server refuses by name."""
    client = anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key=key, max_retries=0)
    asked = {"model": model, "messages": ASKED, "max_tokens": 200, "max_retries": 0}
    create = {mode: instructor.from_anthropic(client, mode=mode).create for mode in (
        instructor.Mode.ANTHROPIC_TOOLS, instructor.Mode.ANTHROPIC_JSON, instructor.Mode.JSON_SCHEMA)}
    assert is_weather(create[instructor.Mode.ANTHROPIC_TOOLS](response_model=Weather, **asked))
    # Both leave the form to the prompt where the SDK has no output_format.
    for mode in (instructor.Mode.ANTHROPIC_JSON, instructor.Mode.JSON_SCHEMA):
        assert is_weather(create[mode](response_model=Weather, extra_body=as_pattern("", ""), **asked)), mode
    called = {"regex": r'<tool_call>\n\{"name": "Weather", "arguments": \{"sunny": (true|false), "days": [123]\}\}\n</tool_call>'}
    several = instructor.from_anthropic(client, mode=instructor.Mode.ANTHROPIC_PARALLEL_TOOLS).create(
        response_model=typing.Iterable[Weather], extra_body={"structured_outputs": called}, **asked)
    several = list(several)
    assert several and all(is_weather(told) for told in several), several
    try:
        instructor.from_anthropic(client, mode=instructor.Mode.ANTHROPIC_REASONING_TOOLS).create(
            response_model=Weather, thinking={"type": "enabled", "budget_tokens": 1024}, **asked)
        raise AssertionError("thinking was not refused")
    except InstructorRetryException as error:
        assert "thinking" in str(error), error


def check_instructor(url, key, model):
    check_instructor_openai(url, key, model)
    check_instructor_anthropic(url, key, model)
    print("instructor: ok")


def check_agents(url, key, model):
    """An agent with a tool over /v1/responses, plain and streamed: the tool is called, its result goes back, a text ends it."""
    agents.set_tracing_disabled(True)
    calls = []

    @agents.function_tool
    def weather(town: str, days: typing.Literal[1, 2, 3]) -> str:
        """The weather of a town."""
        calls.append((town, days))
        return "sun"

    provider = agents.OpenAIProvider(api_key=key, base_url=url)
    settings = agents.ModelSettings(tool_choice="required", max_tokens=200)
    agent = agents.Agent(name="forecaster", instructions="Be brief.", model=model, tools=[weather], model_settings=settings)
    config = agents.RunConfig(model_provider=provider)
    result = agents.Runner.run_sync(agent, "The cat sat on", run_config=config, max_turns=8)
    assert calls and all(days in (1, 2, 3) for _, days in calls), calls
    assert isinstance(result.final_output, str), result

    async def streamed():
        run = agents.Runner.run_streamed(agent, "The cat sat on", run_config=config, max_turns=8)
        names = [event.type async for event in run.stream_events()]
        return run.final_output, names

    import asyncio

    output, names = asyncio.run(streamed())
    assert isinstance(output, str) and "run_item_stream_event" in names, names

    class Forecast(pydantic.BaseModel):
        sunny: bool
        days: typing.Literal[1, 2, 3]

    typed = agents.Agent(name="typed", instructions="Be brief.", model=model, output_type=Forecast,
                         model_settings=agents.ModelSettings(max_tokens=200))
    told = agents.Runner.run_sync(typed, "The cat sat on", run_config=config).final_output
    assert is_weather(told), told
    print("openai-agents: ok")


def check_llm(url, key, model, work):
    """`llm --schema`, `llm` with a template of its own, embeddings of a model it was told of."""
    home = work / "llm"
    home.mkdir(exist_ok=True)
    entry = {"model_id": "ours", "model_name": model, "api_base": url, "api_key_name": "ours",
             "supports_schema": True, "supports_tools": True}
    (home / "extra-openai-models.yaml").write_text(json.dumps([entry]))  # JSON is YAML
    (home / "keys.json").write_text(json.dumps({"ours": key}))
    command = [sys.executable, "-m", "llm", "prompt", "-m", "ours", "-o", "max_tokens", "120", "-o", "seed", "2"]
    environment = {**os.environ, "LLM_USER_PATH": str(home)}

    def ask(*words):
        return subprocess.run([*command, *words, "The cat sat on"], check=True, capture_output=True, text=True,
                              env=environment, stdin=subprocess.DEVNULL).stdout

    for how in ([], ["--no-stream"]):
        told = json.loads(ask(*how, "--schema", json.dumps(Weather.model_json_schema())))
        assert told["days"] in (1, 2, 3) and isinstance(told["sunny"], bool), told
        told = json.loads(ask(*how, "--schema", "days int, sunny bool"))
        assert isinstance(told["days"], int) and isinstance(told["sunny"], bool), told
    assert "items" in json.loads(ask("--schema-multi", "days int"))
    print("llm: ok")
