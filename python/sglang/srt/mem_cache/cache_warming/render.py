# SPDX-License-Identifier: Apache-2.0
"""Token ids of a listed prompt, as a request with the same prompt would have them.

A warmed prefix helps only if every token agrees, so chat messages go through the
chat endpoint's own request conversion and text through the tokenizer call that
``/generate`` makes.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Callable, Optional

from sglang.srt.mem_cache.cache_warming.prompt_file import PromptError, PromptSpec

if TYPE_CHECKING:
    from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat


class PromptRenderer:
    """Renders entries.

    Args:
        tokenizer: the served model's; None under ``--skip-tokenizer-init``.
        serving_chat: makes the chat endpoint's converter at its first use, since
            few files list chat messages.
        vocab_size: token ids must be below it.
    """

    def __init__(
        self,
        tokenizer: Optional[Any],
        serving_chat: Callable[[], OpenAIServingChat],
        vocab_size: int,
    ):
        self._tokenizer = tokenizer
        self._make_serving_chat = serving_chat
        self._serving_chat: Optional[OpenAIServingChat] = None
        self._vocab_size = vocab_size

    def render(self, spec: PromptSpec) -> array:
        """The prompt's token ids, ``array('q')``, at least one.

        Raises:
            PromptError: no tokenizer, a template that rejects the messages, media
                in them, no token, or an id outside the vocabulary.
        """
        try:
            ids = self._token_ids(spec)
        except PromptError:
            raise
        except Exception as error:
            # Templates raise what they like (jinja2, TypeError, ValueError).
            raise PromptError(
                f"prompt {spec.name!r}: cannot be tokenized: {error}"
            ) from error
        if not ids:
            raise PromptError(f"prompt {spec.name!r}: is empty: it has no tokens")
        highest = max(ids)
        if highest >= self._vocab_size:
            raise PromptError(
                f"prompt {spec.name!r}: token id {highest} is outside the vocabulary; "
                f"ids must be below {self._vocab_size}"
            )
        return array("q", ids)

    def _token_ids(self, spec: PromptSpec) -> list[int]:
        if spec.input_ids is not None:
            return spec.input_ids
        if self._tokenizer is None:
            raise PromptError(
                f"prompt {spec.name!r}: text and messages need a tokenizer, which "
                "--skip-tokenizer-init leaves out; list input_ids instead"
            )
        if spec.text is not None:
            return self._encode(spec.text)
        return self._chat(spec)

    def _encode(self, text: str) -> list[int]:
        if getattr(self._tokenizer, "is_fast", False):
            return self._tokenizer([text])["input_ids"][0]
        return self._tokenizer.encode(text)

    def _chat(self, spec: PromptSpec) -> list[int]:
        from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest

        if self._serving_chat is None:
            self._serving_chat = self._make_serving_chat()
        request = ChatCompletionRequest(
            messages=spec.messages,
            tools=spec.tools,
            chat_template_kwargs=dict(spec.chat_template_kwargs or {}) or None,
        )
        if not spec.add_generation_prompt:
            request._format_add_generation_prompt = False
        converted, _ = self._serving_chat._convert_to_internal_request(request)
        if converted.image_data or converted.video_data or converted.audio_data:
            raise PromptError(
                f"prompt {spec.name!r}: messages with images, video or audio cannot "
                "be warmed; only text can"
            )
        if converted.input_ids is not None:
            return list(converted.input_ids)
        return self._encode(converted.text)


class TokenizerManagerView:
    """What the chat endpoint's converter reads of a tokenizer manager.

    The scheduler process has a tokenizer and a model config but no tokenizer
    manager; this stands in for one while prompts are rendered there.
    """

    processor = None
    request_logger = None

    def __init__(self, server_args: Any, model_config: Any, tokenizer: Any):
        from sglang.srt.runtime_context import get_model, get_serving

        self.server_args = server_args
        self.model_config = model_config
        self.tokenizer = tokenizer
        self.model_path = get_model().model_path
        self.served_model_name = get_serving().served_model_name
        self._detected: dict[str, Any] = {}

    def config_value(self, name: str) -> Any:
        """The config value in effect, with parsers detected from the template."""
        from sglang.srt.runtime_context import get_context

        value = get_context().config_leaf(name)
        return self._detected.get(name) if value == "auto" else value

    def adopt_detected_parsers(self, templates: Any) -> None:
        """Take over what "auto" stands for, as the server's start does."""
        self._detected = {
            "reasoning_parser": templates.suggested_reasoning_parser,
            "tool_call_parser": templates.suggested_tool_call_parser,
        }


def scheduler_side_chat(
    server_args: Any, model_config: Any, tokenizer: Any, processor: Any
) -> OpenAIServingChat:
    """The chat endpoint's converter, built in a scheduler process."""
    from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat
    from sglang.srt.parser.template_manager import TemplateManager
    from sglang.srt.runtime_context import get_model, get_serving

    view = TokenizerManagerView(server_args, model_config, tokenizer)
    view.processor = processor
    templates = TemplateManager()
    templates.initialize_templates(
        tokenizer_manager=view,
        model_path=get_model().model_path,
        chat_template=get_serving().chat_template,
    )
    view.adopt_detected_parsers(templates)
    return OpenAIServingChat(view, templates)
