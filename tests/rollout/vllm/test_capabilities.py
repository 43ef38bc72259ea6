"""What is shown of a server."""

from ogrpo.rollout.vllm.capabilities import Capabilities, table


def test_what_a_server_says_of_itself_is_shown_and_not_obeyed():
    found = Capabilities(
        url="http://127.0.0.1:9",
        vllm="\x1b]0;title\x07",
        model="\x1b[2J\u202epolicy",
        max_model_len=8,
        log_probs="raw",
        tokenizer="the trainer's",
        native=False,
        echoes=frozenset({"prompt"}),
        extension={"dtype": "float32", "chunked_prefill": True},
        ranks=2,
        workers=2,
    )
    shown = table([found])
    assert r"\x1b[2J\u202epolicy" in shown
    assert r"vLLM \x1b]0;title\x07" in shown
    assert "\x1b" not in shown
