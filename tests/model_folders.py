"""Folders of small models, made on the spot: a tokenizer trained on a few lines, and a chat template."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors, trainers
from tokenizers.decoders import ByteLevel

LINES = [
    "The harbour master counts the boats that come in, and writes each of them into the book of the day.",
    "You are a helpful assistant. When is high water in Bergen? Be brief. Be kind.",
    "请用中文简要说明：港口今天有几艘船？谢谢！",
] * 4

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message.reasoning_content %}{{ '<think>' + message.reasoning_content + '</think>' }}{% endif %}"
    "{{ message['content'] }}"
    "{% for call in message.tool_calls or [] %}"
    "{{ call.function.name }} {{ call.function.arguments | tojson }}"
    "{% endfor %}"
    "{{ '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if enable_thinking is defined %}{{ 'thinking ' ~ enable_thinking }}{% endif %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PARTS = (
    "{% for message in messages %}[{{ message.role }}]"
    "{% for part in message['content'] %}<{{ part.text }}>{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
#: Shows everything that an engine gives to a template, contents as parts.
TELLING = CHATML.replace(
    "{{ message['content'] }}",
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}[{{ part.type }}: {{ part.text }}]{% endfor %}{% endif %}"
    "{{ message.tool_call_id }}{{ message.reasoning }}",
)
#: Takes a system message only in the first place.
STRICT = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'system' and not loop.first %}{{ raise_exception('system must be first') }}{% endif %}"
    "[{{ message.role }}]{{ message.content }}"
    "{% endfor %}"
)


def make_model_folder(folder: Path, template: str | None = CHATML, *, begin_token: bool = False) -> Path:
    """A folder with ``tokenizer.json``, its configuration and, unless None, a chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevel()
    special = [AddedToken(text, special=True, normalized=False) for text in ("<|begin|>", "<|im_start|>", "<|im_end|>")]
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES, trainer)
    if begin_token:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|begin|> $A", pair="<|begin|> $A $B", special_tokens=[("<|begin|>", 0)]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<|begin|>", "eos_token": {"content": "<|im_end|>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder
