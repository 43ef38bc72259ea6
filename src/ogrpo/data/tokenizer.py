"""Text to token ids and back, and how a question becomes a prompt."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ogrpo.data import chat
from ogrpo.data.chat import PLAIN_PROMPT, Messages
from ogrpo.data.tokenizer_files import (
    SPECIAL,
    TEMPLATE,
    read_backend,
    read_chat_template,
    read_config,
    token_text,
)
from ogrpo.protocol import IntArray
from ogrpo.system.files import write_json, write_text

EOS, PAD, UNKNOWN = "<eos>", "<pad>", "<unk>"
UNKNOWN_ID_TEXT = "\N{REPLACEMENT CHARACTER}"


class TextTokenizer:
    """A `tokenizers.Tokenizer` with its special tokens and its prompt format.

    Args:
        backend: the tokenizer proper.
        config: the content of `tokenizer_config.json`; `eos_token` is required. Without a
            `pad_token`, `pad_id` is `eos_id`: padding is told by masks, never by ids.
        chat_template: Jinja source; None renders `prompt_template` as it stands.
        prompt_template: the user's turn, `{question}` standing for the question.
        system_prompt: an opening system turn, for chat templates only.
        template_options: further variables for the chat template (`enable_thinking=False`).
    """

    def __init__(
        self,
        backend: Tokenizer,
        config: Mapping[str, Any],
        *,
        chat_template: str | None = None,
        prompt_template: str = PLAIN_PROMPT,
        system_prompt: str | None = None,
        template_options: Mapping[str, Any] | None = None,
    ) -> None:
        if "{question}" not in prompt_template:
            raise ValueError(f"prompt_template {prompt_template!r} has no {{question}} in it.")
        if system_prompt is not None and chat_template is None:
            raise ValueError(
                "system_prompt needs a chat template and this tokenizer has none: "
                "put the instruction into prompt_template."
            )
        self.backend = backend
        self.config = dict(config)
        self.chat_template = chat_template
        self.prompt_template = prompt_template
        self.system_prompt = system_prompt
        self.template_options = dict(template_options or {})
        self.eos_id = self._special_id("eos_token")
        self.pad_id = self._special_id("pad_token") if config.get("pad_token") else self.eos_id
        self._unknown_id = self._special_id("unk_token") if config.get("unk_token") else None

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id; the model's vocabulary may be padded beyond it."""
        return max(self.backend.get_vocab(with_added_tokens=True).values()) + 1

    def padded_vocab_size(self, multiple: int) -> int:
        """Round `vocab_size` up to a multiple, for the model's embedding table."""
        return -(-self.vocab_size // multiple) * multiple

    def encode(
        self, text: str, *, add_eos: bool = False, add_special_tokens: bool = False
    ) -> IntArray:
        """Return int32 token ids.

        `add_special_tokens` adds what the tokenizer itself puts around a text (a BOS, mostly).

        Raises:
            ValueError: a word is not in the vocabulary.
        """
        encoding = self.backend.encode(text, add_special_tokens=add_special_tokens)
        if self._unknown_id is not None and self._unknown_id in encoding.ids:
            start, end = encoding.offsets[encoding.ids.index(self._unknown_id)]
            raise ValueError(
                f"{text[start:end]!r} is not in the vocabulary of {self.vocab_size} tokens; "
                f"it stands in {text[:80]!r}. Use a tokenizer made for this text."
            )
        return np.array([*encoding.ids, *([self.eos_id] if add_eos else [])], np.int32)

    def decode(self, ids: Sequence[int] | IntArray, *, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids.

        A model with a padded vocabulary can sample ids that no token has; each is shown as U+FFFD,
        so that a reward does not read past it.
        """
        pieces, run = [], []
        for token in np.asarray(ids).tolist():
            if self.backend.id_to_token(token) is None:
                pieces += [self.backend.decode(run, skip_special_tokens), UNKNOWN_ID_TEXT]
                run = []
            else:
                run.append(token)
        return "".join([*pieces, self.backend.decode(run, skip_special_tokens)])

    def render_prompt(
        self,
        prompt: str | Messages,
        *,
        system: str | None = None,
        chat_variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the text a model is to continue: the chat template's, or the plain one's.

        Args:
            prompt: a question, which `prompt_template` makes the user's turn, or chat messages.
            system: an opening system turn in place of the tokenizer's own.
            chat_variables: added to the tokenizer's `template_options`, and before them.

        Raises:
            ValueError: something is asked for that needs a chat template, and there is none; the
                messages have a system turn already; or the chat template drops the question.
        """
        messages = chat.to_messages(prompt, self.prompt_template)
        if self.chat_template is None:
            chat.refuse_chat(prompt, system, chat_variables)
            return messages[-1]["content"]
        messages = chat.with_system(messages, self.system_prompt if system is None else system)
        variables = self._special_texts() | self.template_options | dict(chat_variables or {})
        rendered = chat.render_chat(self.chat_template, messages, variables)
        chat.check_asked(self.chat_template, messages, rendered)
        return rendered

    def encode_prompt(
        self,
        prompt: str | Messages,
        *,
        system: str | None = None,
        chat_variables: Mapping[str, Any] | None = None,
    ) -> IntArray:
        """Render and encode; a chat template writes its own BOS, a plain prompt is given one.

        Arguments and errors are those of `render_prompt`.
        """
        text = self.render_prompt(prompt, system=system, chat_variables=chat_variables)
        return self.encode(text, add_special_tokens=self.chat_template is None)

    def sample_texts(self, *, count: int = 32, length: int = 16) -> list[tuple[list[int], str]]:
        """Token ids with their text, by which another tokenizer can be told from this one.

        About `count` times `length` ids at even distances from the whole vocabulary, and the added
        tokens besides, all of them.
        """
        ids = sorted(self.backend.get_vocab().values())
        plain = ids[:: -(-len(ids) // (count * length))]
        added = sorted(self.backend.get_added_tokens_decoder())
        parts = [*_parts(plain, length), *_parts(added, length)]
        return [(part, self.backend.decode(part, skip_special_tokens=False)) for part in parts]

    def save(self, folder: str | Path) -> None:
        """Write `tokenizer.json`, `tokenizer_config.json` and the chat template, as found."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "tokenizer.json", self.backend.to_str(pretty=True))
        config = {k: v for k, v in self.config.items() if k != "chat_template"}
        write_json(folder / "tokenizer_config.json", config)
        if self.chat_template is not None:
            write_text(folder / TEMPLATE, self.chat_template)

    @classmethod
    def load(cls, folder: str | Path, **options: Any) -> "TextTokenizer":
        """Read a Hugging Face folder; `options` are the keyword arguments of the class.

        Raises:
            ValueError: a file is missing or broken; it is named.
        """
        folder = Path(folder)
        backend = read_backend(folder / "tokenizer.json")
        config = read_config(folder / "tokenizer_config.json")
        template = read_chat_template(folder, config)
        try:
            return cls(backend, config, chat_template=template, **options)
        except ValueError as error:
            raise ValueError(f"{folder}: {error}") from error

    def _special_id(self, name: str) -> int:
        token = token_text(self.config.get(name))
        token_id = None if token is None else self.backend.token_to_id(token)
        if token_id is None:
            raise ValueError(
                f"{name} is {token!r}, which is no token of this tokenizer; "
                f"set {name} in tokenizer_config.json to one of its tokens."
            )
        return token_id

    def _special_texts(self) -> dict[str, str]:
        texts = {name: token_text(self.config.get(name)) for name in SPECIAL}
        return {name: text for name, text in texts.items() if text is not None}


def word_level(words: Iterable[str], **options: Any) -> TextTokenizer:
    """Make a tokenizer with one token a word, words being parted by white space.

    Ids follow the order of `words`, then come `<pad>`, `<eos>` and `<unk>`; the last is never
    encoded, a word without a token being an error.
    """
    vocab = {word: i for i, word in enumerate(dict.fromkeys([*words, PAD, EOS, UNKNOWN]))}
    backend = Tokenizer(models.WordLevel(vocab, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    backend.add_special_tokens([PAD, EOS, UNKNOWN])
    return TextTokenizer(backend, _plain_config(PAD, EOS, unk_token=UNKNOWN), **options)


def train_bpe(
    texts: Iterable[str], vocab_size: int, *, split_digits: bool = True, **options: Any
) -> TextTokenizer:
    """Train a byte-level BPE tokenizer: any text encodes, and decodes to itself.

    The same texts give the same tokenizer. With `split_digits` each digit is a token of its own,
    whatever stands beside it: `12` is `1`, `2` in ` 12` and in `312` too, so that a small model can
    learn to calculate from few examples. Without, frequent numbers are tokens, and texts shorter.

    Raises:
        ValueError: `vocab_size` leaves no room for the 256 bytes and two special tokens.
    """
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if vocab_size < len(alphabet) + 2:
        raise ValueError(f"vocab_size is {vocab_size}; give at least {len(alphabet) + 2}.")
    backend = Tokenizer(models.BPE())
    pieces: Any = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if split_digits:
        digits = pre_tokenizers.Digits(individual_digits=True)
        pieces = pre_tokenizers.Sequence([digits, pieces])
    backend.pre_tokenizer = pieces  # pyright: ignore[reportAttributeAccessIssue]
    backend.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, EOS],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return TextTokenizer(backend, _plain_config(PAD, EOS), **options)


def _plain_config(pad: str, eos: str, **more: str) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": pad,
        "eos_token": eos,
        "clean_up_tokenization_spaces": False,
        **more,
    }


def _parts(whole: list[int], length: int) -> list[list[int]]:
    return [whole[start : start + length] for start in range(0, len(whole), length)]
