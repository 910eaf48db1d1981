"""Writes crates/npuc-run/tests/data/templates.json: chat templates in the manner of well-known models, and the texts
that Jinja2 makes of them when it is set up as Hugging Face transformers sets it up.

    pip install jinja2==3.1.* && python tools/text/templates.py
"""

import datetime
import json
import pathlib

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

DATA = pathlib.Path(__file__).parents[2] / "crates/npuc-run/tests/data/templates.json"
DATE = datetime.datetime(2024, 7, 26)

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

LLAMA3 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- The first message may be the system's. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- raise_exception("This is for conversations without tools.") }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

QWEN25 = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

QWEN3 = """{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

MISTRAL = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}{% set content = system_message + '\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)

ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>
'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

GENERATION = """{% set who = 'outer' %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- generation %}
{% set who = 'inner' %}
<a>{{ message.content }}{{ who }}</a>
        {% endgeneration -%}
    {%- else %}
<u>{{ message.content }}</u>
    {% generation %}
  {%+ if true %}x{% endif %}
    {%- endgeneration %}
    {%- endif %}
{%- endfor %}
{{ who }}
"""

CONSTRUCTS = """{%- macro wrap(text, mark='*') -%}
{{ mark }}{{ text }}{{ mark }}
{%- endmacro -%}
{{ messages | tojson }}
{{ messages | tojson(indent=2) }}
{{ {'a': [1, 2.5, true, none], 'b': {}, 'c': [], 'd': "<'&'>\\\\ \\"é😀\\u2028"} | tojson(ensure_ascii=False) }}
{%- for message in messages %}
    {%- if message.role == 'system' %}{% continue %}{% endif %}
    {%- if loop.index > 3 %}{% break %}{% endif %}
{{ loop.index }} {{ loop.first }} {{ wrap(message.role.upper().title()) }} {{ wrap(message.content.strip() | length, '+') }}
    {%- for key, value in message.items() %} {{ key }}={{ value.replace('\\n', '/')[:4] }}{% endfor %}
{%- endfor %}
{{ messages | map(attribute='role') | join(',') }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }}
{{ none }} {{ true }} {{ 7 // 2 }} {{ 7 % 4 }} {{ 2 ** 3 }} {{ 'a' ~ 1 }} {{ [1, 'b', none, true] }} {{ {'k': 'v'} }}
{{ undefined_name }}{{ messages[0].nothing }}{{ messages[0].get('nothing', 'default') }} {{ pad_token is defined }}
{{ "%s-%d" | format('x', 3) }} {{ 'b' in 'abc' }} {{ 'x' not in ['y'] }} {{ ('a' if false else 'b') }} {{ "a,b,c".split(',') | last }}
{{ '  x '.lstrip() }}|{{ 'abc'.endswith('c') }}|{{ 'aXbX'.find('X') }}|{{ 'x' | default('y') }}|{{ 'A b'.lower().capitalize() }}
{{ strftime_now('%Y-%m-%d %B %A %j %H:%M:%S %y %b %a %I %p %% %e') }}
{% raw %}{% generation %}{{ not rendered }}{% endraw %}

{{ messages[-1].content | trim | replace('a', 'b') }}
  {% if true %}
  kept
  {% endif %}
    {%+ if true %}indented{% endif +%}

end
"""

CHAT = [
    ("system", " Be brief.\n"),
    ("user", "Hi, what's 1 < 2 & \"3\"?"),
    ("assistant", "<think>\nhm\n</think>\n\nTrue \\ naïve 😀"),
    ("user", "Thanks\nagain  "),
]
CHATS = {
    "one": [("user", "Hello")],
    "system": CHAT[:2],
    "turns": CHAT,
    "answer": CHAT[1:3],
    "unordered": [("user", "a"), ("user", "b")],
    "tool": [("user", "a"), ("tool", "42"), ("tool", "43"), ("assistant", "b")],
}
TEMPLATES = {
    "smollm2": (SMOLLM2, {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}),
    "llama3": (LLAMA3, {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}),
    "qwen2.5": (QWEN25, {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}),
    "qwen3": (QWEN3, {"eos_token": "<|im_end|>"}),
    "mistral": (MISTRAL, {"bos_token": "<s>", "eos_token": "</s>"}),
    "zephyr": (ZEPHYR, {"bos_token": "<s>", "eos_token": "</s>"}),
    "generation": (GENERATION, {}),
    "constructs": (CONSTRUCTS, {"pad_token": "<pad>"}),
}


class Generation(Extension):
    """Parses the generation mark as transformers does: a call block whose body is rendered as it is."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])

    def raise_exception(message):
        raise TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = DATE.strftime
    return env


def case(name, chat, prompt):
    template, tokens = TEMPLATES[name]
    messages = [{"role": role, "content": content} for role, content in CHATS[chat]]
    values = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": prompt, **tokens}
    row = {"template": name, "chat": chat, "add_generation_prompt": prompt}
    try:
        row["text"] = environment().from_string(template).render(**values)
    except TemplateError as error:
        row["error"] = error.message
    return row


cases = [case(name, chat, prompt) for name in TEMPLATES for chat in CHATS for prompt in (False, True)]
templates = {name: {"template": text, "special_tokens": tokens} for name, (text, tokens) in TEMPLATES.items()}
chats = {name: [{"role": r, "content": c} for r, c in chat] for name, chat in CHATS.items()}
data = {"date": f"{DATE:%Y-%m-%d}", "templates": templates, "chats": chats, "cases": cases}
DATA.write_text(json.dumps(data, ensure_ascii=False, indent=1) + "\n")
