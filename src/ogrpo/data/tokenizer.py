"""Tokenizers: text to token ids and back, questions and messages to prompts, folders of files."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ogrpo.data.chat import Messages, render_chat, template_variables
from ogrpo.protocol import IntArray
from ogrpo.system import files

TEMPLATE = "chat_template.jinja"
FOLDER = (
    f"; a tokenizer folder holds tokenizer.json and tokenizer_config.json (and {TEMPLATE}, if it"
    " chats)"
)
SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")
MOST_TEMPLATE = 1 << 20
"""Bytes of a chat template; the longest known ones have some 20,000."""
EOS, PAD, UNKNOWN = "<eos>", "<pad>", "<unk>"
PLAIN_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "pad_token": PAD,
    "eos_token": EOS,
    "clean_up_tokenization_spaces": False,
}
UNKNOWN_ID_TEXT = "\N{REPLACEMENT CHARACTER}"


class TextTokenizer:
    """A `tokenizers.Tokenizer` with its special tokens and its chat template.

    Args:
      backend: the tokenizer proper.
      config: the content of `tokenizer_config.json`; `eos_token` is required. Without a
        `pad_token`, `pad_id` is `eos_id`: padding is told by masks, never by ids.
      chat_template: Jinja source; None renders a prompt as it stands.
    """

    def __init__(
        self, backend: Tokenizer, config: Mapping[str, Any], *, chat_template: str | None = None
    ) -> None:
        self.backend = backend
        self.config = dict(config)
        self.chat_template = chat_template
        self.eos_id = self._special_id("eos_token")
        self.pad_id = self._special_id("pad_token") if config.get("pad_token") else self.eos_id
        unknown_id = self._special_id("unk_token") if config.get("unk_token") else None
        # A byte-level tokenizer knows every text, and may name its end token here (SmolLM2).
        self._unknown_id = None if unknown_id == self.eos_id else unknown_id

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id; the model's vocabulary may be padded beyond it."""
        return max(self.backend.get_vocab(with_added_tokens=True).values()) + 1

    def padded_vocab_size(self, multiple: int) -> int:
        """Rounds `vocab_size` up to a multiple, for the model's embedding table."""
        return -(-self.vocab_size // multiple) * multiple

    @property
    def ends(self) -> dict[str, int]:
        """The fields of a model's `config.json` that name its end and its padding."""
        return {"eos_token_id": self.eos_id, "pad_token_id": self.pad_id}

    def encode(
        self, text: str, *, add_eos: bool = False, add_special_tokens: bool = False
    ) -> IntArray:
        """Returns int32 token ids.

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
        """Returns the text of token ids.

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
        """Returns the text a model is to continue: the chat template's, or the plain one's.

        Args:
          prompt: the user's turn, or chat messages.
          system: an opening system turn, for chat templates only.
          chat_variables: of the chat template (`enable_thinking=False`).

        Raises:
          ValueError: messages, a system turn or variables without a chat template; two system
            turns; or the chat template fails or drops the question, white space aside.
        """
        if isinstance(prompt, str):
            messages: Messages = [{"role": "user", "content": prompt}]
        elif self.chat_template is None:
            raise ValueError(
                "the prompt is chat messages and this tokenizer has no chat template: use a model "
                "with one, put one beside it (chat_template.jinja), or make the prompt a text."
            )
        else:
            messages = prompt
        if self.chat_template is None:
            for name, value in (("system prompt", system), ("chat variables", chat_variables)):
                if value:
                    raise ValueError(
                        f"{name} {value!r:.60}: it needs a chat template and this tokenizer has "
                        "none; put the instruction into the prompt."
                    )
            return messages[-1]["content"]
        if system is not None and messages[0]["role"] in ("system", "developer"):
            raise ValueError(
                f"system prompt {system[:60]!r}: the messages begin with a {messages[0]['role']} "
                "turn of their own; leave one of the two out."
            )
        if system is not None:
            messages = [{"role": "system", "content": system}, *messages]
        special = {name: token_text(self.config.get(name)) for name in SPECIAL}
        variables = {name: text for name, text in special.items() if text is not None}
        variables |= chat_variables or {}
        rendered = render_chat(self.chat_template, messages, variables)
        said = [message["content"] for message in messages if message["role"] == "user"]
        if said and _squeeze(said[-1]) not in _squeeze(rendered):
            raise ValueError(
                f"the chat template that begins {_squeeze(self.chat_template)[:60]!r} drops the "
                f"question: {said[-1][:60]!r} is not in what it renders, {rendered[:120]!r}. Use a "
                "template that writes the user's message (chat_template.jinja in the model's "
                "folder)."
            )
        return rendered

    def encode_prompt(
        self,
        prompt: str | Messages,
        *,
        system: str | None = None,
        chat_variables: Mapping[str, Any] | None = None,
    ) -> IntArray:
        """Renders and encodes; a chat template writes its own BOS, a plain prompt is given one.

        Arguments and errors are those of `render_prompt`.
        """
        text = self.render_prompt(prompt, system=system, chat_variables=chat_variables)
        return self.encode(text, add_special_tokens=self.chat_template is None)

    def save(self, folder: str | Path) -> None:
        """Writes `tokenizer.json`, `tokenizer_config.json` and the chat template."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        files.write_text(folder / "tokenizer.json", self.backend.to_str(pretty=True))
        config = {k: v for k, v in self.config.items() if k != "chat_template"}
        files.write_json(folder / "tokenizer_config.json", config)
        if self.chat_template is not None:
            files.write_text(folder / TEMPLATE, self.chat_template)

    @classmethod
    def load(cls, folder: str | Path) -> "TextTokenizer":
        """Reads a Hugging Face folder.

        Raises:
          ValueError: a file is missing or broken; it is named.
        """
        folder = Path(folder)
        file = folder / "tokenizer.json"
        if not isinstance(files.read_object(file, FOLDER).get("model"), Mapping):
            raise ValueError(f"{file} is no tokenizer: it has no 'model'.")
        try:
            backend = Tokenizer.from_file(str(file))
        except Exception as error:  # the library has no class of its own for what it does not take
            raise ValueError(f"{file} is no tokenizer that can be read: {error}") from error
        backend.no_truncation()  # stored with the file, both would be applied in silence
        backend.no_padding()
        config = read_config(folder / "tokenizer_config.json")
        added = config.get("added_tokens_decoder")
        for token in added.values() if isinstance(added, Mapping) else ():
            text = token.get("content") if isinstance(token, Mapping) else None
            if isinstance(text, str) and backend.token_to_id(text) is None:
                raise ValueError(
                    f"{folder / 'tokenizer_config.json'} adds {text!r}, which {file} lacks: load"
                    " and save the tokenizer with transformers"
                )
        template = read_chat_template(folder, config)
        try:
            return cls(backend, config, chat_template=template)
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


def word_level(words: Iterable[str]) -> TextTokenizer:
    """Makes a tokenizer with one token a word, words being parted by white space.

    Ids follow the order of `words`, then come `<pad>`, `<eos>` and `<unk>`; the last is never
    encoded, a word without a token being an error.
    """
    vocab = {word: i for i, word in enumerate(dict.fromkeys([*words, PAD, EOS, UNKNOWN]))}
    backend = Tokenizer(models.WordLevel(vocab, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    backend.add_special_tokens([PAD, EOS, UNKNOWN])
    return TextTokenizer(backend, PLAIN_CONFIG | {"unk_token": UNKNOWN})


def train_bpe(
    texts: Iterable[str], vocab_size: int, *, chat_template: str | None = None
) -> TextTokenizer:
    """Trains a byte-level BPE tokenizer: any text encodes, and decodes to itself.

    The same texts give the same tokenizer. Each digit is a token of its own, whatever stands beside
    it: `12` is `1`, `2` in ` 12` and in `312` too, so that a small model can learn to calculate
    from few examples.

    Raises:
      ValueError: `vocab_size` leaves no room for the 256 bytes and two special tokens.
    """
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if vocab_size < len(alphabet) + 2:
        raise ValueError(f"vocab_size is {vocab_size}; give at least {len(alphabet) + 2}.")
    backend = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    pieces: Any = [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    backend.pre_tokenizer = pre_tokenizers.Sequence(pieces)  # pyright: ignore[reportAttributeAccessIssue]
    backend.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, EOS],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return TextTokenizer(backend, PLAIN_CONFIG, chat_template=chat_template)


def token_text(token: Any) -> str | None:
    """Returns a special token's text, which may stand in an object."""
    return token["content"] if isinstance(token, Mapping) else token


def read_config(file: Path) -> dict[str, Any]:
    """Reads `tokenizer_config.json`, whose special tokens are texts or objects with a text."""
    config = files.read_object(file, FOLDER)
    for name in SPECIAL:
        token = config.get(name)
        text = token.get("content") if isinstance(token, Mapping) else token
        if not isinstance(text, str) and token is not None:
            raise ValueError(
                f"{file}: {name!r} is {token!r:.60}: give a text, or an object with the text as"
                " 'content'"
            )
    return config


def read_chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Returns the template of `chat_template.jinja`, or else of the config, or None.

    Raises:
      ValueError: it is no text, or no template; names the file.
    """
    file = folder / TEMPLATE
    if file.is_file():
        template = files.read_text(file, MOST_TEMPLATE)
    else:
        file, template = folder / "tokenizer_config.json", config.get("chat_template")
    if isinstance(template, list) and all(
        isinstance(each, Mapping) and {"name", "template"} <= each.keys() for each in template
    ):
        templates = {str(each["name"]): each["template"] for each in template}
        template = templates.get("default")
        if not isinstance(template, str):
            raise ValueError(f"{file}: chat templates {sorted(templates)}, none named 'default'.")
    if template is None:
        return None
    if not isinstance(template, str):
        raise ValueError(
            f"{file}: 'chat_template' is {template!r:.60}: give a text, or a list of objects with"
            " 'name' and 'template'"
        )
    template_variables(template, str(file))
    return template


def _squeeze(text: str) -> str:
    return " ".join(text.split())
