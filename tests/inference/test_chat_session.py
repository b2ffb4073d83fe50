"""`ChatSession` and `axcore chat`: each question with all that was said before it."""

import io

import pytest
from model_server import byte_tokenizer, small_engine

from axcore.cli.main import main
from axcore.cli.options import escape_control_characters
from axcore.errors import RequestError
from axcore.inference import ChatSession, Request, Sampling
from axcore.runs import load_run
from axcore.testing.tiny import small_experiment

GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def engine():
    with small_engine(byte_tokenizer()) as made:
        yield made


def session(engine, **values):
    return ChatSession(engine, engine.tokenizer, sampling=GREEDY, max_tokens=5, **values)


@pytest.mark.slow
def test_a_question_is_asked_with_what_was_said_before(engine):
    chat = session(engine, system="s")
    first = "".join(chat.ask("a"))
    second = "".join(chat.ask("b"))
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": first.strip()},
        {"role": "user", "content": "b"},
    ]
    template = engine.tokenizer.known_chat_template
    text = template.render(messages, add_generation_prompt=True)
    prompt = tuple(engine.tokenizer.encode_rendered(text).tolist())
    asked = Request(prompt=prompt, max_tokens=5, sampling=GREEDY)
    assert second == engine.submit(asked).result().text
    assert chat.messages == [*messages[1:], {"role": "assistant", "content": second.strip()}]


@pytest.mark.slow
def test_what_is_too_old_is_left_out_and_counted(engine):
    chat = session(engine)
    for _ in range(2):
        list(chat.ask("x" * 20))
    assert chat.num_dropped == 0
    list(chat.ask("y" * 50))
    assert chat.num_dropped == 2
    with pytest.raises(RequestError, match=r"the question has \d+ tokens, and the model reads 128"):
        list(chat.ask("z" * 200))
    assert len(chat.messages) == 6  # a question that was refused was not said


@pytest.mark.slow
def test_an_answer_that_is_left_is_kept_as_far_as_it_came(engine):
    chat = session(engine)
    pieces = chat.ask("a")
    begun = next(pieces)
    pieces.close()
    assert [one["role"] for one in chat.messages] == ["user", "assistant"]
    assert chat.messages[-1]["content"] == begun.strip()
    chat.clear()
    assert chat.messages == []


@pytest.mark.slow
def test_lines_of_a_pipe_are_messages_and_commands(tmp_path, monkeypatch, capsys):
    small_experiment(tmp_path / "text").build().run(tmp_path / "run")
    typed = 'Say a\n/clear\n/cleer\n\n"""\na\nb\n"""\n/quit\nnot read\n'
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    options = ["--max-tokens=3", "--temperature=0", "--set=page_size=8"]
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["chat", str(tmp_path / "run"), *options])
    shown, run = capsys.readouterr(), load_run(tmp_path / "run")
    template, answers = run.trainer.data.tokenizer.known_chat_template, ""
    for asked in ("Say a", "a\nb"):  # the second was asked after /clear
        message = {"role": "user", "content": asked}
        prompt = template.render([message], add_generation_prompt=True)
        found = run.generate(prompt, max_tokens=3, sampling=GREEDY).text
        answers += escape_control_characters(found) + "\n"
    assert shown.out.endswith(answers)
    assert "forgotten" in shown.err
    assert "there is no command /cleer; /help" in shown.err
